"""Reads an arm's name back into its switches and settings; a mistyped name gets the nearest one as a hint."""

from collections.abc import Iterable

import yaml

from dapo_lit.errors import suggestion
from dapo_lit.study.designs import ARMS, Arm, Design, Setting
from dapo_lit.techniques import DAPO, NAIVE_GRPO, REGISTER

OUTSIDE = ("rollout.", "reward.", "policy.", "task.", "trainer.", "evaluation.", "budget.")
"""Keys written in full in a name; all others are short for `algorithm.<key>`."""


def read_arm(name: str) -> Arm:
    """The arm of a name as `Arm.name` writes it.

    >>> read_arm("dapo-clip_higher@optimizer.lr=0.0003").settings
    {'algorithm.optimizer.lr': 0.0003}

    Raises:
        ValueError: not the name of an arm, with what is wrong and how it is written.
    """
    vector, *settings = name.split("@")
    references = {"naive_grpo": NAIVE_GRPO, "dapo": DAPO}
    reference = next((word for word in references if vector.startswith(word)), None)
    if reference is None:
        raise ValueError(f"{name!r} is no arm: a name starts with dapo or naive_grpo")
    on = set(references[reference])
    for change in vector[len(reference) :].replace("+", " +").replace("-", " -").split():
        technique = change.lstrip("+-")
        if technique not in REGISTER or change[0] not in "+-":
            hint = suggestion(technique, REGISTER)
            raise ValueError(f"{name!r} is no arm: {technique} is no technique; {hint}")
        (on.add if change[0] == "+" else on.discard)(technique)
    arm = Arm(frozenset(on), dict(_setting(name, text) for text in settings))
    if arm.name != name:
        raise ValueError(f"{name!r}: this arm's one name is {arm.name!r}")
    return arm


def read_arms(words: Iterable[str]) -> tuple[Arm, ...]:
    """The arms of a list of names and of words that stand for several (`ladder`), each once.

    Raises:
        ValueError: not the name of an arm.
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
    """The config keys that an arm's name sets; none where it is the name of another algorithm's run."""
    try:
        return frozenset(read_arm(name).settings)
    except ValueError:
        return frozenset()


def find_arm(study: Design, name: str) -> Arm:
    """The arm of a study by its name.

    Raises:
        ValueError: the study has no such arm; with the nearest one, or all.
    """
    for arm in study.arms:
        if arm.name == name:
            return arm
    raise ValueError(f"study {study.name} has no arm {name!r}; {suggestion(name, study.names)}")


def _setting(name: str, text: str) -> tuple[str, Setting]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{name!r} is no arm: @{text} has no value; a setting is written @clip.high=0.5")
    # YAML 1.1 reads 1e-4 as text.
    try:
        read: Setting = int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        read = yaml.safe_load(value)
    return (key if key.startswith(OUTSIDE) else f"algorithm.{key}"), read
