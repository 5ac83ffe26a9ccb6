"""Arms: the one name of each, its reader, and the sets of arms that a study's file can name by a word (`ARMS`).

An arm is the set of techniques that are on plus, in studies of other settings, the config values it changes. Its name
is computed from these (`arm_name`, `Arm.name`): two arms that differ never share a folder, and nobody invents a label.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ablations.errors import suggestion
from ablations.techniques import DAPO, LADDER, NAIVE_GRPO, REGISTER, is_own
from ablations.texts import yaml_tree

Setting = bool | int | float | str
OWN = "algorithm.own_techniques"
"""The key of the techniques in files of the user's."""


def switches(on: Iterable[str]) -> dict[str, bool]:
    """Every registered switch with its value.

    Raises ValueError: a technique that is not registered, nor in a user's file.
    """
    on = frozenset(technique for technique in on if not is_own(technique))
    if unknown := sorted(on - set(REGISTER)):
        raise ValueError(f"unknown: {', '.join(unknown)}; the switches are {', '.join(REGISTER)}")
    return {switch: switch in on for switch in REGISTER}


def arm_name(techniques: Mapping[str, bool], family: str = "dapo", preset: Mapping[str, bool] | None = None) -> str:
    """The one name of a set of switches: the nearer reference, then every difference from it in the register's order.

    Fewest differences win, a tie goes to `dapo`. A switch that is not given is off. An algorithm of another family is
    named after it, with every difference from the switches that its `preset` sets; where the preset is not known, after
    the family and the name that the switches have by themselves.

    >>> arm_name({"overlong_filtering": True, "clip_higher": True})
    'naive_grpo+overlong_filtering+clip_higher'
    >>> arm_name({"clip_higher": True}, "grpo", {"clip_higher": False})
    'grpo+clip_higher'
    >>> arm_name(switches(DAPO - {"clip_higher"}), "mine")
    'mine_dapo-clip_higher'
    >>> arm_name(switches(DAPO) | {"my_file.LIGHT": True})
    'dapo+my_file.LIGHT'

    Raises ValueError: an unknown switch.
    """
    switches(techniques)
    on = {switch for switch, value in techniques.items() if value}
    references: dict[str, Iterable[str]] = {"dapo": DAPO, "naive_grpo": NAIVE_GRPO}
    if family != "dapo":
        if not preset:
            return f"{family}_{arm_name(techniques)}"
        references = {family: [switch for switch, value in preset.items() if value]}
    every = [*REGISTER, *sorted(filter(is_own, on))]
    differing = {name: [t for t in every if (t in on) != (t in base)] for name, base in references.items()}
    nearest = min(differing, key=lambda name: len(differing[name]))
    return nearest + "".join(("+" if t in on else "-") + t for t in differing[nearest])


@dataclass(frozen=True)
class Arm:
    """One arm: the techniques that are on, and the config values that differ from the experiment's (full keys)."""

    on: frozenset[str]
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def techniques(self) -> dict[str, bool]:
        """Every registered switch with its value."""
        return switches(self.on)

    @property
    def own(self) -> list[str]:
        """The techniques in files of the user's that are on."""
        return sorted(filter(is_own, self.on))

    @property
    def name(self) -> str:
        """The name of the switches and, behind @, every setting.

        >>> Arm(DAPO, {"algorithm.clip.high": 0.5}).name
        'dapo@clip.high=0.5'
        """
        return arm_name(self.techniques | dict.fromkeys(self.own, True)) + "".join(
            f"@{key.removeprefix('algorithm.')}={_plain(self.settings[key])}" for key in sorted(self.settings)
        )

    @property
    def values(self) -> dict[str, Setting | list[str]]:
        """Every config key that the arm sets, all switches included."""
        own: dict[str, Setting | list[str]] = {OWN: self.own} if self.own else {}
        return {**{f"algorithm.techniques.{t}": on for t, on in self.techniques.items()}, **own, **self.settings}


def _plain(value: Setting) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Design:
    """The arms of a study in the order of its tables; all others are compared with `reference`."""

    name: str
    reference: str
    arms: tuple[Arm, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arm.name for arm in self.arms)

    @property
    def declared(self) -> frozenset[str]:
        """The config keys in which the arms may differ."""
        varying = frozenset.union(*(arm.on for arm in self.arms)) - frozenset.intersection(*(a.on for a in self.arms))
        keys = (OWN if is_own(t) else f"algorithm.techniques.{t}" for t in varying)
        return frozenset(keys).union(*(arm.settings for arm in self.arms))


PARTS = {
    "loss": "loss_options",
    "advantage.estimator": "advantage.options",
    "overlong.punish": "overlong.options",
    "correction.kind": "correction.options",
    "entropy.control": "entropy.options",
}
"""Keys below `algorithm` that name a function, and those of its options."""


def own_parts(algorithm: Mapping[str, Any]) -> dict[str, Setting]:
    """The functions of a user's file in the section `algorithm` of a config, with their options, as an arm sets them.

    >>> own_parts({"loss": "my_file.soft_clip", "loss_options": {"width": 0.2}, "advantage": {"estimator": "group"}})
    {'algorithm.loss': 'my_file.soft_clip', 'algorithm.loss_options.width': 0.2}
    """
    found: dict[str, Setting] = {}
    for key, options in PARTS.items():
        name = _below(algorithm, key)
        if isinstance(name, str) and "." in name:
            found[f"algorithm.{key}"] = name
            found |= {f"algorithm.{options}.{option}": v for option, v in (_below(algorithm, options) or {}).items()}
    return found


def _below(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def ladder() -> tuple[Arm, ...]:
    """Table 1 as printed: naive GRPO and five cumulative additions; the last arm has all five on."""
    return tuple(Arm(frozenset(LADDER[:rungs])) for rungs in range(len(LADDER) + 1))


def leave_one_out() -> tuple[Arm, ...]:
    """DAPO, DAPO without each of its techniques, and DAPO with each of the others added."""
    parts = [t for t in REGISTER if t in DAPO]
    others = [t for t in REGISTER if t not in DAPO]
    return Arm(DAPO), *(Arm(DAPO - {t}) for t in parts), *(Arm(DAPO | {t}) for t in others)


def add_one_in() -> tuple[Arm, ...]:
    """Naive GRPO, and naive GRPO with each technique by itself."""
    return Arm(NAIVE_GRPO), *(Arm(NAIVE_GRPO | {t}) for t in REGISTER)


def cube(techniques: Iterable[str] | None = None) -> tuple[Arm, ...]:
    """All combinations of these techniques (all that are registered), every other one off."""
    names = tuple(REGISTER if techniques is None else techniques)
    return tuple(
        Arm(frozenset(itertools.compress(names, on))) for on in itertools.product((False, True), repeat=len(names))
    )


def half_fraction(techniques: Iterable[str] | None = None) -> tuple[Arm, ...]:
    """The half of the cube with an even number of techniques on: of five, defining relation I = -ABCDE, resolution V.

    It holds both `dapo` (four on) and `naive_grpo` (none), so both references are arms of the study.
    """
    return tuple(arm for arm in cube(techniques) if len(arm.on) % 2 == 0)


ARMS = {
    "ladder": ladder,
    "cube": cube,
    "half_fraction": half_fraction,
    "leave_one_out": leave_one_out,
    "add_one_in": add_one_in,
}
"""Words that stand for several arms in `study.arms`."""


OUTSIDE = ("rollout.", "reward.", "policy.", "task.", "trainer.", "evaluation.", "budget.")
"""Keys written in full in a name; all others are short for `algorithm.<key>`."""


def read_arm(name: str) -> Arm:
    """The arm of a name as `Arm.name` writes it, but with its settings in any order and spelling.

    >>> read_arm("dapo-clip_higher@optimizer.lr=3e-4").name
    'dapo-clip_higher@optimizer.lr=0.0003'
    >>> read_arm("dapo@loss_options={width: 0.2}@loss=mine.soft_clip").name
    'dapo@loss=mine.soft_clip@loss_options.width=0.2'

    Raises ValueError: not the name of an arm, with what is wrong and how it is written.
    """
    vector, *settings = name.split("@")
    references = {"naive_grpo": NAIVE_GRPO, "dapo": DAPO}
    reference = next((word for word in references if vector.startswith(word)), None)
    if reference is None:
        raise ValueError(f"{name!r} is not an arm: a name starts with dapo or naive_grpo")
    on = set(references[reference])
    for change in vector[len(reference) :].replace("+", " +").replace("-", " -").split():
        technique = change.lstrip("+-")
        if not (technique in REGISTER or is_own(technique)) or change[0] not in "+-":
            hint = suggestion(technique, REGISTER)
            raise ValueError(f"{name!r} is not an arm: {technique} is not a technique; {hint}")
        (on.add if change[0] == "+" else on.discard)(technique)
    given = [pair for text in settings for pair in _setting(name, text)]
    if twice := [key for place, (key, _) in enumerate(given) if key in dict(given[:place])]:
        raise ValueError(f"{name!r} sets {twice[0]} twice")
    arm = Arm(frozenset(on), dict(given))
    # Of the switches there is one spelling: another one is a slip, such as a technique that is on already.
    if arm.name.partition("@")[0] != vector:
        raise ValueError(f"{name!r}: this arm's one name is {arm.name!r}")
    return arm


def read_arms(words: Iterable[str]) -> tuple[Arm, ...]:
    """The arms of a list of names and of words that stand for several (`ladder`), each once.

    Raises ValueError: not the name of an arm.
    """
    arms = [arm for word in words for arm in (ARMS[word]() if word in ARMS else (read_arm(word),))]
    return tuple({arm.name: arm for arm in arms}.values())


def in_order(names: Iterable[str], registered: Iterable[str] = ()) -> list[str]:
    """Names of arms in the order of a plan; then those of a ladder, left out, added and combined; then by name."""
    usual = (arm.name for arm in read_arms(["ladder", "leave_one_out", "add_one_in", "cube"]))
    known = dict.fromkeys([*registered, *usual])
    place = {name: number for number, name in enumerate(known)}
    return sorted(dict.fromkeys(names), key=lambda name: (place.get(name, len(place)), name))


def settings_of(name: str) -> frozenset[str]:
    """The config keys that an arm's name sets besides the switches; none where it is the name of another algorithm's
    run."""
    try:
        arm = read_arm(name)
        return frozenset([*arm.settings, *([OWN] if arm.own else [])])
    except ValueError:
        return frozenset()


def arm_in_words(name: str) -> str:
    """The name of an arm, or its settings, with the options of a part as words.

    >>> arm_in_words("dapo@loss=mine.soft_clip@loss_options.width=0.2")
    'dapo@loss=mine.soft_clip with width 0.2'
    """
    settings = name.split("@")
    options = [text for text in settings if "options." in text.partition("=")[0]]
    words = [f"{key.rpartition('.')[2]} {value}" for key, _, value in (text.partition("=") for text in options)]
    plain = "@".join(text for text in settings if text not in options)
    return f"{plain} with {' and '.join(words)}" if words else plain


def _setting(name: str, text: str) -> Iterator[tuple[str, Setting]]:
    """The keys and values of one setting: several of a mapping."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{name!r} is not an arm: @{text} has no value; a setting is written @clip.high=0.5")
    key = key if key.startswith(OUTSIDE) else f"algorithm.{key}"
    read = read_value(value)
    if isinstance(read, Mapping):
        for inner, part in read.items():
            yield f"{key}.{inner}", part
    else:
        yield key, read


def read_value(text: str) -> Setting:
    """A value as a setting has it.

    >>> read_value("1e-4"), read_value("null"), read_value("[1, true]")
    (0.0001, None, [1, True])
    """
    # YAML 1.1 reads 1e-4 as text.
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return yaml_tree(text, "a setting")
