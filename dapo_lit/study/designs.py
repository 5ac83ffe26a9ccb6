"""Which arms a study has: switches and settings, and the one name of each arm. Descriptions only, no runs.

An arm is the set of techniques that are on plus, in studies of other settings, the config values it changes. Its name
is computed from these (`arm_name`, `Arm.name`): two arms that differ never share a folder, and nobody invents a label.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dapo_lit.techniques import DAPO, LADDER, NAIVE_GRPO, REGISTER

Setting = bool | int | float | str


def switches(on: Iterable[str]) -> dict[str, bool]:
    """Every registered switch with its value.

    Raises:
        ValueError: a technique that is not registered.
    """
    on = frozenset(on)
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

    Raises:
        ValueError: an unknown switch.
    """
    switches(techniques)
    on = {switch for switch, value in techniques.items() if value}
    references: dict[str, Iterable[str]] = {"dapo": DAPO, "naive_grpo": NAIVE_GRPO}
    if family != "dapo":
        if not preset:
            return f"{family}_{arm_name(techniques)}"
        references = {family: [switch for switch, value in preset.items() if value]}
    differing = {name: [t for t in REGISTER if (t in on) != (t in base)] for name, base in references.items()}
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
    def name(self) -> str:
        """The name of the switches and, behind @, every setting.

        >>> Arm(DAPO, {"algorithm.clip.high": 0.5}).name
        'dapo@clip.high=0.5'
        """
        return arm_name(self.techniques) + "".join(
            f"@{key.removeprefix('algorithm.')}={_plain(self.settings[key])}" for key in sorted(self.settings)
        )

    @property
    def values(self) -> dict[str, Setting]:
        """Every config key that the arm sets, all switches included."""
        return {**{f"algorithm.techniques.{t}": on for t, on in self.techniques.items()}, **self.settings}

    def overrides(self) -> list[str]:
        """Command-line overrides that turn any experiment into this arm."""
        return [f"{key}={_plain(value)}" for key, value in self.values.items()]


def _plain(value: Setting) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Design:
    """The arms of a study in the order of its tables; all others are compared with `reference`."""

    name: str
    question: str
    reference: str
    arms: tuple[Arm, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arm.name for arm in self.arms)

    @property
    def declared(self) -> frozenset[str]:
        """The config keys in which the arms may differ."""
        varying = frozenset.union(*(arm.on for arm in self.arms)) - frozenset.intersection(*(a.on for a in self.arms))
        return frozenset(f"algorithm.techniques.{t}" for t in varying).union(*(arm.settings for arm in self.arms))


def ladder() -> tuple[Arm, ...]:
    """Table 1 as printed: naive GRPO and five cumulative additions; the last arm has all five on."""
    return tuple(Arm(frozenset(LADDER[:rungs])) for rungs in range(len(LADDER) + 1))


def cube(techniques: Iterable[str]) -> tuple[Arm, ...]:
    """All combinations of these techniques, every other one off."""
    names = tuple(techniques)
    return tuple(
        Arm(frozenset(itertools.compress(names, on))) for on in itertools.product((False, True), repeat=len(names))
    )


def half_fraction(techniques: Iterable[str]) -> tuple[Arm, ...]:
    """The half of the cube with an even number of techniques on: of five, defining relation I = -ABCDE, resolution V.

    It holds both `dapo` (four on) and `naive_grpo` (none), so both references are arms of the study.
    """
    return tuple(arm for arm in cube(techniques) if len(arm.on) % 2 == 0)


def design(
    name: str, lr: float = 1e-4, completions: int = 512, updates: int = 4, techniques: Sequence[str] | None = None
) -> Design:
    """The study `name`.

    Args:
        lr: learning rate of the experiment, which `lr_sensitivity` multiplies.
        completions: samples of a rollout step, which `group_size` holds constant.
        updates: updates of a rollout step, likewise.
        techniques: those that leave_one_out, add_one_in and the factorials vary; None: all that are registered.

    Raises:
        ValueError: an unknown study, with the known ones.
    """
    known = tuple(REGISTER if techniques is None else techniques)
    parts = [t for t in known if t in DAPO]
    dapo, grpo = Arm(DAPO), Arm(NAIVE_GRPO)
    match name:
        case "table1":
            return Design(name, "What does each rung of the paper's ladder add?", grpo.name, (*ladder(), dapo))
        case "leave_one_out":
            arms = (dapo, *map(_without, parts), *(Arm(DAPO | {t}) for t in known if t not in DAPO))
            return Design(name, "What does DAPO lose without each technique?", "dapo", arms)
        case "add_one_in":
            arms = (grpo, *(Arm(NAIVE_GRPO | {t}) for t in known))
            return Design(name, "What does each technique add to naive GRPO alone?", grpo.name, arms)
        case "factorial":
            return Design(name, "Effects and all interactions of the techniques", grpo.name, cube(known))
        case "factorial_half":
            arms = half_fraction(known)
            return Design(name, f"Main effects and pairwise interactions in {len(arms)} arms", grpo.name, arms)
        case "emergence":
            without = _without("clip_higher")
            return Design(name, "Does clip-higher let rare reasoning emerge?", without.name, (without, dapo))
        case "emergence_token_level_loss":
            without = _without("token_level_loss")
            return Design(name, "Does the token-level loss keep rare reasoning down?", without.name, (without, dapo))
        case _:
            return _settings_design(name, lr, completions, updates, parts)


def _without(technique: str, settings: Mapping[str, Setting] | None = None) -> Arm:
    return Arm(DAPO - {technique}, settings or {})


def _dapo_with(key: str, *values: Setting) -> list[Arm]:
    """DAPO with one setting changed, an arm for each value."""
    return [Arm(DAPO, {key: value}) for value in values]


def _settings_design(name: str, lr: float, completions: int, updates: int, parts: Sequence[str]) -> Design:
    """Studies of other settings than switches; the reference is `dapo`."""
    low, high, hard = "algorithm.clip.low", "algorithm.clip.high", "algorithm.overlong.hard_punishment"
    token, sample = "algorithm.token_level_denominator", "algorithm.completion_level_denominator"
    dapo = Arm(DAPO)
    arms: list[Arm]
    match name:
        case "clip_sweep":
            question = "Which bound of the clip matters?"
            bounds = [*_dapo_with(high, 0.24, 0.35, 0.5), *_dapo_with(low, 0.1, 0.28)]
            arms = [dapo, _without("clip_higher"), *bounds, Arm(DAPO, {low: 0.4, high: 0.5})]
        case "overlong_modes":
            question = "Truncated answers: none, hard, filter, soft, both"
            plain, filtering = DAPO - {"soft_overlong_punishment"}, {"overlong_filtering"}
            arms = [
                Arm(plain, {hard: False}),
                Arm(plain, {hard: True}),
                Arm(plain | filtering, {hard: False}),
                dapo,
                Arm(DAPO | filtering),
            ]
        case "kl_sweep":
            question = "Is the KL term needed?"
            arms = [dapo, *_dapo_with("algorithm.kl.beta", 0.001, 0.01, 0.04, 0.2)]
        case "group_size":
            question = f"Group size at {completions} completions a step"
            arms = [dapo, *(_group_size(size, completions // size, updates) for size in (4, 8, 32))]
        case "lr_sensitivity":
            question = "Does the sign of an effect survive another learning rate?"
            rates: list[dict[str, Setting]] = [
                {} if factor == 1 else {"algorithm.optimizer.lr": float(f"{lr * factor:g}")} for factor in (1, 1 / 3, 3)
            ]
            arms = [Arm(base, rate) for rate in rates for base in (DAPO, *(DAPO - {t} for t in parts))]
        case "carry_over":
            question = "Groups sampled ahead: dropped, or used in the next step"
            arms = [dapo, *_dapo_with("algorithm.dynamic_sampling.carry_over", "finished", "all")]
        case "overlap":
            question = "What do rollouts cost that are one rollout step old?"
            arms = [dapo, *_dapo_with("rollout.overlap", True)]
        case "aggregation":
            question = "Which denominator of the loss?"
            per_sample = [_without("token_level_loss"), _without("token_level_loss", {sample: "constant"})]
            arms = [dapo, *_dapo_with(token, "group"), *per_sample, *_dapo_with(token, "microbatch")]
        case "long_chains":
            question = "From which share of long chains in the base policy do they take over?"
            arms = [Arm(DAPO, {"task.base.long_chains": share / 100}) for share in (1, 2, 4, 8, 16, 32)]
            return Design(name, question, arms[0].name, tuple(arms))
        case "placebo":
            question = "How often does the report call two identical arms different?"
            arms = [dapo, *_dapo_with("rollout.noise_stream", 1)]
        case _:
            raise ValueError(f"unknown study {name!r}; known: {', '.join(DESIGNS)}")
    return Design(name, question, "dapo", tuple(arms))


def _group_size(size: int, prompts: int, updates: int) -> Arm:
    """DAPO with groups of this size; the completions of a step and its updates are held constant."""
    keys = ("samples_per_prompt", "num_prompts", "minibatch_prompts")
    values = (size, prompts, max(1, prompts // updates))
    return Arm(DAPO, {f"algorithm.{key}": value for key, value in zip(keys, values, strict=True)})


DESIGNS = (
    "table1",
    "leave_one_out",
    "add_one_in",
    "factorial",
    "factorial_half",
    "emergence",
    "emergence_token_level_loss",
    "clip_sweep",
    "overlong_modes",
    "kl_sweep",
    "group_size",
    "lr_sensitivity",
    "carry_over",
    "overlap",
    "aggregation",
    "long_chains",
    "placebo",
)
