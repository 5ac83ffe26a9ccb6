"""Which arms a study has: switch vectors and settings, and the one name of each arm. Pure descriptions, no runs.

An arm is a vector of the five techniques plus, in studies of other settings, the config values it changes. Its name is
computed from these (`arm_name`, `Arm.name`), so two arms that differ never share a folder and nobody invents a label.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

TECHNIQUES = ("overlong_filtering", "clip_higher", "soft_overlong_punishment", "token_level_loss", "dynamic_sampling")
"""In the order of the paper's Table 1; names and tables keep it."""

NAIVE_GRPO: Mapping[str, bool] = dict.fromkeys(TECHNIQUES, False)
DAPO: Mapping[str, bool] = {**dict.fromkeys(TECHNIQUES, True), "overlong_filtering": False}

Setting = bool | int | float | str


def arm_name(techniques: Mapping[str, bool], family: str = "dapo", switches: Mapping[str, bool] | None = None) -> str:
    """The one name of a switch vector: its nearer reference, then every difference from it in Table 1's order.

    Fewest differences win, a tie goes to `dapo`. An algorithm of another family is named after it, and every
    difference from the `switches` that it sets itself; where those are not known, after it and the vector's own name.

    >>> arm_name({**NAIVE_GRPO, "overlong_filtering": True, "clip_higher": True})
    'naive_grpo+overlong_filtering+clip_higher'
    >>> arm_name({**NAIVE_GRPO, "clip_higher": True}, "grpo", NAIVE_GRPO)
    'grpo+clip_higher'
    >>> arm_name({**DAPO, "clip_higher": False}, "mine")
    'mine_dapo-clip_higher'

    Raises:
        ValueError: a switch is missing or unknown.
    """
    if set(techniques) != set(TECHNIQUES):
        wrong = sorted(set(techniques) ^ set(TECHNIQUES))
        raise ValueError(
            f"an arm needs exactly the switches {', '.join(TECHNIQUES)}; missing or unknown: {', '.join(wrong)}"
        )
    names = []
    references: tuple[tuple[str, Mapping[str, bool]], ...] = (("dapo", DAPO), ("naive_grpo", NAIVE_GRPO))
    if family != "dapo":
        if not switches:
            return f"{family}_{arm_name(techniques)}"
        references = ((family, switches),)
    for reference, base in references:
        differing = [t for t in TECHNIQUES if techniques[t] != base[t]]
        names.append((len(differing), reference + "".join(("+" if techniques[t] else "-") + t for t in differing)))
    return min(names, key=lambda counted: counted[0])[1]


@dataclass(frozen=True)
class Arm:
    """One arm: switches, and the config values that differ from the experiment's (full keys)."""

    techniques: Mapping[str, bool]
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The switches' name and, behind @, every setting.

        >>> Arm(DAPO, {"algorithm.clip.high": 0.5}).name
        'dapo@clip.high=0.5'
        """
        return arm_name(self.techniques) + "".join(
            f"@{key.removeprefix('algorithm.')}={_plain(self.settings[key])}" for key in sorted(self.settings)
        )

    @property
    def values(self) -> dict[str, Setting]:
        """Every config key that the arm sets, the five switches included."""
        return {**{f"algorithm.techniques.{t}": self.techniques[t] for t in TECHNIQUES}, **self.settings}

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
        switches = {
            f"algorithm.techniques.{t}" for t in TECHNIQUES if len({arm.techniques[t] for arm in self.arms}) > 1
        }
        return frozenset(switches | {key for arm in self.arms for key in arm.settings})


def ladder() -> tuple[Arm, ...]:
    """Table 1 as printed: naive GRPO and five cumulative additions; the last arm has all five on."""
    return tuple(Arm({t: i < rungs for i, t in enumerate(TECHNIQUES)}) for rungs in range(len(TECHNIQUES) + 1))


def _without(technique: str, settings: Mapping[str, Setting] | None = None) -> Arm:
    return Arm({**DAPO, technique: False}, settings or {})


def _with(base: Mapping[str, bool], technique: str) -> Arm:
    return Arm({**base, technique: True})


def _cube() -> list[Arm]:
    return [
        Arm(dict(zip(TECHNIQUES, on, strict=True))) for on in itertools.product((False, True), repeat=len(TECHNIQUES))
    ]


def half_fraction() -> tuple[Arm, ...]:
    """The half of the 2^5 cube with an even number of techniques on: defining relation I = -ABCDE, resolution V.

    It holds both `dapo` (four on) and `naive_grpo` (none), so both references are arms of the study.
    """
    return tuple(arm for arm in _cube() if sum(arm.techniques.values()) % 2 == 0)


DAPO_TECHNIQUES = tuple(t for t in TECHNIQUES if DAPO[t])


def design(name: str, lr: float = 1e-4, completions: int = 512, updates: int = 4) -> Design:
    """The study `name`.

    Args:
        lr: learning rate of the experiment, which `lr_sensitivity` multiplies.
        completions: samples of a rollout step, which `group_size` holds constant.
        updates: updates of a rollout step, likewise.

    Raises:
        ValueError: an unknown study, with the known ones.
    """
    off, dapo = NAIVE_GRPO, Arm(DAPO)
    match name:
        case "table1":
            return Design(name, "What does each rung of the paper's ladder add?", "naive_grpo", (*ladder(), dapo))
        case "leave_one_out":
            arms = (dapo, *(_without(t) for t in DAPO_TECHNIQUES), _with(DAPO, "overlong_filtering"))
            return Design(name, "What does DAPO lose without each technique?", "dapo", arms)
        case "add_one_in":
            arms = (Arm(off), *(_with(off, t) for t in TECHNIQUES))
            return Design(name, "What does each technique add to naive GRPO alone?", "naive_grpo", arms)
        case "factorial":
            return Design(name, "Effects and all interactions of the five techniques", "naive_grpo", tuple(_cube()))
        case "factorial_half":
            return Design(name, "Main effects and pairwise interactions in 16 arms", "naive_grpo", half_fraction())
        case "emergence":
            without = _without("clip_higher")
            return Design(name, "Does clip-higher let rare reasoning emerge?", without.name, (without, dapo))
        case "emergence_token_level_loss":
            without = _without("token_level_loss")
            return Design(name, "Does the token-level loss keep rare reasoning down?", without.name, (without, dapo))
        case _:
            return _settings_design(name, lr, completions, updates)


def _settings_design(name: str, lr: float, completions: int, updates: int) -> Design:
    """Studies that change more than switches."""
    low, high, hard = "algorithm.clip.low", "algorithm.clip.high", "algorithm.overlong.hard_punishment"
    dapo = Arm(DAPO)
    match name:
        case "clip_sweep":
            highs = [Arm(DAPO, {high: value}) for value in (0.24, 0.35, 0.5)]
            lows = [Arm(DAPO, {low: value}) for value in (0.1, 0.28)] + [Arm(DAPO, {low: 0.4, high: 0.5})]
            return Design(
                name, "Which bound of the clip matters?", "dapo", (dapo, _without("clip_higher"), *highs, *lows)
            )
        case "overlong_modes":
            plain, filtered = {**DAPO, "soft_overlong_punishment": False}, {**DAPO, "overlong_filtering": True}
            modes = (
                Arm(plain, {hard: False}),
                Arm(plain, {hard: True}),
                Arm({**plain, "overlong_filtering": True}, {hard: False}),
                dapo,
                Arm(filtered),
            )
            return Design(name, "Truncated answers: none, hard, filter, soft, both", "dapo", modes)
        case "kl_sweep":
            betas = (0.001, 0.01, 0.04, 0.2)
            return Design(
                name, "Is the KL term needed?", "dapo", (dapo, *(Arm(DAPO, {"algorithm.kl.beta": b}) for b in betas))
            )
        case "group_size":
            return Design(
                name, f"Group size at {completions} completions a step", "dapo", _group_sizes(completions, updates)
            )
        case "lr_sensitivity":
            bases = (dapo, *(_without(t) for t in DAPO_TECHNIQUES))
            arms = tuple(
                Arm(base.techniques, {} if factor == 1 else {"algorithm.optimizer.lr": float(f"{lr * factor:g}")})
                for factor in (1, 1 / 3, 3)
                for base in bases
            )
            return Design(name, "Does the sign of an effect survive another learning rate?", "dapo", arms)
        case "carry_over":
            key = "algorithm.dynamic_sampling.carry_over"
            arms = (dapo, *(Arm(DAPO, {key: mode}) for mode in ("finished", "all")))
            return Design(name, "Groups begun ahead: dropped, or used in the next step", "dapo", arms)
        case "overlap":
            arms = (dapo, Arm(DAPO, {"rollout.overlap": True}))
            return Design(name, "What do rollouts cost that are one rollout step old?", "dapo", arms)
        case "aggregation":
            token, sample = "algorithm.token_level_denominator", "algorithm.completion_level_denominator"
            arms = (
                dapo,
                Arm(DAPO, {token: "group"}),
                _without("token_level_loss"),
                _without("token_level_loss", {sample: "constant"}),
                Arm(DAPO, {token: "microbatch"}),
            )
            return Design(name, "Which denominator of the loss?", "dapo", arms)
        case "placebo":
            question = "How often does the report call two identical arms different?"
            return Design(name, question, "dapo", (dapo, Arm(DAPO, {"rollout.noise_stream": 1})))
        case _:
            raise ValueError(f"unknown study {name!r}; known: {', '.join(DESIGNS)}")


def _group_sizes(completions: int, updates: int) -> tuple[Arm, ...]:
    """G = 4, 8, 32 beside the experiment's 16, with the completions of a step and its updates held constant."""
    arms = [Arm(DAPO)]
    for size in (4, 8, 32):
        prompts = completions // size
        settings: dict[str, Setting] = {
            "algorithm.samples_per_prompt": size,
            "algorithm.num_prompts": prompts,
            "algorithm.minibatch_prompts": max(1, prompts // updates),
        }
        arms.append(Arm(DAPO, settings))
    return tuple(arms)


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
    "placebo",
)
