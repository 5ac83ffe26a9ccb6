"""The register of techniques: all that configs, warnings, studies, reports and figures know about a switch.

Adding a technique takes four files: a record and a field of `Switches` here, the switch in conf/algorithm/dapo.yaml
(false), its function (in objective/ or rollout/), and its binding in switches/algorithm.py, the one place that reads
the switch.

A new switch is off by default, and runs that were made before it existed read as off. Register records, not code: this
file imports the standard library only, so that reading reports loads no framework.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Lookup = Callable[[str], Any]
"""The value of a key below `algorithm`, such as `clip.high`, or of `rollout.steps_ahead`; None where it is not
known."""


def step_mean(rows: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Mean of a metric, or of a ratio `a:b` of two, over rollout steps; None where no step has it."""
    if ":" in key:
        above, below = (step_mean(rows, part) for part in key.split(":"))
        return above / below if above is not None and below else None
    values = [row[key] for row in rows if row["step"] > 0 and row.get(key) is not None]
    return float(sum(values) / len(values)) if values else None


@dataclass(frozen=True)
class Condition:
    """The amount of something that training needs before a technique can act, measured in runs without it."""

    metric: str
    words: str
    """The thing that the metric counts."""
    least: float
    """Below this mean over steps the technique has next to nothing to act on."""
    inverted: bool = False
    """One minus the metric is what counts."""
    share: bool = True
    """Printed in percent."""
    metric_while_on: str | None = None
    """The metric of a run in which the switch is on; None: `metric`."""
    lowered: bool = False
    """The technique lowers the metric: a run in which it is on shows in its first step only what there was."""
    instead: tuple[str, str] | None = None
    """Another metric that shows that it acts, from the same size on, and what that one is."""
    lever: str = ""
    """The key that gives the technique more to act on, in a sentence."""
    source: str = "chosen below what every study that decided its effect measured (docs/claims.yaml)"
    """The source of `least`."""
    like: tuple[str, ...] = ()
    """Further metrics, and ratios `a:b` of two, in which runs have to resemble each other before an effect that was
    found in one says something about the other."""

    def mean(self, rows: Iterable[Mapping[str, Any]], on: bool) -> float | None:
        """Mean of the metric over the steps of a run in which the switch is on or off; None: it was not logged."""
        return step_mean(rows, (self.metric_while_on or self.metric) if on else self.metric)

    def judged(self, rows: Sequence[Mapping[str, Any]], on: bool) -> tuple[bool | None, str]:
        """True if the technique can act in a run of these rows, None if that is unknown; and why, in words."""
        rows = [row for row in rows if row["step"] > 0]
        if on and self.lowered:
            rows = [row for row in rows if row["step"] == 1]
        if (mean := self.mean(rows, on)) is None:
            return None, f"{self.words}: not logged" + " of the first step" * (on and self.lowered)
        acts, amount = self.measured(mean)
        amount += " in the first step" * (on and self.lowered)
        size = None if acts or self.instead is None else step_mean(rows, self.instead[0])
        if self.instead is None or size is None or abs(size) < self.least:
            return acts, amount
        return True, f"{amount}; but {self.instead[1]} is {abs(size):.3f}"

    def measured(self, metric_mean: float) -> tuple[bool, str]:
        """True if the technique can act, and the number in words with the one that is needed."""
        value = 1 - metric_mean if self.inverted else metric_mean
        text = f"{value:.1%} (needs {self.least:.1%})" if self.share else f"{value:.2f} (needs {self.least:g})"
        # By the number as it is shown: 1 - 0.9 is a bit below 0.1.
        return round(value, 3 if self.share else 2) >= self.least, f"{self.words}: {text}"


@dataclass(frozen=True)
class Caution:
    """What a technique does besides what it is for, by what runs measure."""

    metric: str
    """In a run in which the switch is on."""
    words: str
    metric_while_off: str
    """What the technique would do it to, in a run in which the switch is off."""
    words_while_off: str
    least: float
    """Shares below this are not worth a line."""
    remedy: str
    averts: str
    """The switch that averts it."""

    def text(self, rows: Iterable[Mapping[str, Any]], on: bool | None, averted: bool) -> str:
        """A sentence with the share measured; empty where there is next to none, or none was logged.

        on: None: the run's settings are not known.
        averted: the switch that averts it is on.
        """
        key, words = (self.metric, self.words) if on else (self.metric_while_off, self.words_while_off)
        if averted and not on:
            return ""
        share = step_mean(rows, key)
        return f"caution: {share:.1%} {words}; {self.remedy}" if share is not None and share >= self.least else ""


@dataclass(frozen=True)
class OwnSetting:
    """A setting that acts only while the switch is on (or off), and its value that changes nothing."""

    key: str
    neutral: Any
    while_on: bool = True


@dataclass(frozen=True)
class Technique:
    """One switch, `algorithm.techniques.<switch>`."""

    switch: str
    section: str
    """Section of arXiv 2503.14476, or another source."""
    equation: str
    """Empty where the source states none."""
    on: str
    off: str
    label: str
    short: str
    """Names it at the end of a line in a figure."""
    colour: str
    condition: Condition
    never_acted: tuple[str, str] | None = None
    """A metric that stays 0 in a run in which the switch is on and nothing happens, and what to say then."""
    idle: tuple[Callable[[Lookup], str | None], ...] = ()
    """Each: why the switch changes nothing under some settings; None where it does."""
    loss_argument: tuple[str, str] | None = None
    """The argument of the loss through which it acts, and what that argument is."""
    settings: tuple[OwnSetting, ...] = ()
    caution: Caution | None = None
    advantages: Callable[..., Any] | None = None
    """Of a technique in a user's file: (advantages [N], completions [N]) -> what becomes of the advantages [N]."""
    keeps: Callable[..., Any] | None = None
    """Of a technique in a user's file: (lengths [B], truncated [B], correct [B]) -> [B] bool, which completions carry
    loss."""

    @property
    def description(self) -> str:
        """Its source and what the switch does, as the documentation of the config key."""
        return f"{', '.join(filter(None, (self.section, self.equation)))}: {self.on}; off: {self.off}."


def may_be_stale(get: Lookup) -> str:
    """The setting by which samples of older weights are trained on; empty: none."""
    if get("rollout.steps_ahead"):
        return f"rollout.steps_ahead={get('rollout.steps_ahead')}"
    carried, exhausted = get("dynamic_sampling.carry_over"), get("dynamic_sampling.on_exhausted")
    if not get("techniques.dynamic_sampling"):
        return ""
    if carried not in (None, "none"):
        return f"algorithm.dynamic_sampling.carry_over={carried}"
    return "algorithm.dynamic_sampling.on_exhausted=replay" if exhausted == "replay" else ""


def is_own(technique: str) -> bool:
    """True for one in a user's file, which is named by its path."""
    return "." in technique


UNCLIPPED = ("reinforce", "kl_cov")
"""Built-in losses without an upper bound of the ratio (switches/algorithm.py)."""

REGISTER: dict[str, Technique] = {
    technique.switch: technique
    for technique in (
        Technique(
            "overlong_filtering",
            section="Section 3.4",
            equation="",
            on="truncated completions carry no loss; they stay in their group's mean and standard deviation",
            off="truncated completions are trained on",
            label="overlong filtering",
            short="filter",
            colour="#f89c20",
            condition=Condition(
                "rollout/truncated_frac",
                "completions truncated",
                0.02,
                lever="A lower task.max_response_tokens truncates more.",
                like=("rollout/length_max:rollout/length_mean",),
            ),
            never_acted=("rollout/truncated_frac", "nothing was truncated"),
        ),
        Technique(
            "clip_higher",
            section="Section 3.1",
            equation="Eq. 10",
            on="the upper bound of the ratio is `clip.high`",
            off="both bounds of the ratio are `clip.low`",
            label="clip-higher",
            short="clip",
            colour="#5790fc",
            condition=Condition(
                "clip/high_frac_last_epoch",  # ratios move furthest in the last epoch
                "tokens clipped at 1 + clip.low while clip-higher is off",
                0.005,
                metric_while_on="clip/symmetric_high_frac_last_epoch",
                lever="More updates a step (a lower algorithm.minibatch_prompts) move the ratios further.",
                like=("rollout/entropy",),
            ),
            idle=(
                lambda get: (
                    f"clip.high equals clip.low ({get('clip.low')})"
                    if get("clip.high") is not None and get("clip.high") == get("clip.low")
                    else None
                ),
                lambda get: f"loss={get('loss')} has no upper bound" if get("loss") in UNCLIPPED else None,
                lambda get: (
                    "with one update a step (minibatch_prompts=num_prompts, epochs=1) every ratio is 1"
                    if get("num_prompts") == get("minibatch_prompts")
                    and get("epochs") == 1
                    and get("old_logprobs") == "recompute"
                    and not may_be_stale(get)
                    else None
                ),
            ),
            loss_argument=("clip_high", "upper bound"),
        ),
        Technique(
            "soft_overlong_punishment",
            section="Section 3.4",
            equation="Eq. 13",
            on="a length penalty is added to the reward",
            off="no length penalty; `overlong.hard_punishment` applies",
            label="soft overlong punishment",
            short="soft",
            colour="#e42536",
            condition=Condition(
                "rollout/truncated_frac",
                "completions truncated",
                0.02,
                lowered=True,
                instead=("reward/length_penalty", "the mean penalty, of answers in the buffer,"),
                lever="A lower task.max_response_tokens, or a higher algorithm.overlong.cache_tokens, punishes more.",
                like=("rollout/length_max:rollout/length_mean",),
            ),
            never_acted=("reward/length_penalty", "the penalty never fired"),
            idle=(
                lambda get: (
                    "overlong.cache_tokens=0 punishes responses above the limit, and none is longer"
                    if get("overlong.cache_tokens") == 0
                    else None
                ),
                lambda get: (
                    "overlong.punish=none: no answer's penalty counts" if get("overlong.punish") == "none" else None
                ),
            ),
            settings=(OwnSetting("overlong.punish", "all"),),
            caution=Caution(
                "sampling/groups_wrong_with_advantages_frac",
                "of the groups trained on are all wrong and have advantages from the penalty alone, for being short",
                "rollout/groups_all_wrong_frac",
                "of the groups are all wrong, and the penalty would reinforce their short answers",
                0.01,
                "dynamic sampling drops them, algorithm.overlong.punish=mixed or right takes the penalty off them",
                "dynamic_sampling",
            ),
        ),
        Technique(
            "token_level_loss",
            section="Section 3.3",
            equation="Eq. 12",
            on="every token weighs the same",
            off="every completion weighs the same (GRPO)",
            label="token-level loss",
            short="token",
            colour="#964a8b",
            condition=Condition(
                "rollout/length_cv",
                "coefficient of variation of length",
                0.5,
                share=False,
                lever="Responses differ more in length under a higher task.max_response_tokens, or in another task.",
                like=("rollout/length_wrong:rollout/length_correct",),
                source="chosen freely for the token-level loss, whose effect no study has decided",
            ),
            settings=(
                OwnSetting("token_level_denominator", "minibatch"),
                OwnSetting("completion_level_denominator", "sample", while_on=False),
            ),
        ),
        Technique(
            "dynamic_sampling",
            section="Section 3.2",
            equation="Eq. 11",
            on="groups that are all correct or all wrong are dropped and replaced",
            off="every group is trained on",
            label="dynamic sampling",
            short="dynamic",
            colour="#7a21dd",
            condition=Condition(
                "rollout/groups_mixed_frac",
                "groups not mixed",
                0.10,
                inverted=True,
                lever="Fewer algorithm.samples_per_prompt, or easier or harder problems, leave more groups unmixed.",
                like=("rollout/groups_all_correct_frac", "rollout/groups_all_wrong_frac"),
            ),
            never_acted=("sampling/tokens_filtered_frac", "it never dropped a group"),
            idle=(
                lambda get: (
                    "dynamic_sampling.max_rounds=1 with on_exhausted=top_up trains on every group that is generated"
                    if get("dynamic_sampling.max_rounds") == 1 and get("dynamic_sampling.on_exhausted") == "top_up"
                    else None
                ),
            ),
            settings=(
                OwnSetting("dynamic_sampling.carry_over", "none"),
                OwnSetting("dynamic_sampling.pass_rate_margin", 0.0),
            ),
        ),
    )
}
"""By switch. Names of arms and the rows of tables keep this order, which begins with that of the paper's Table 1."""


class Switches:
    """The fields of the config section `algorithm.techniques`."""

    overlong_filtering: bool = False
    clip_higher: bool = False
    soft_overlong_punishment: bool = False
    token_level_loss: bool = False
    dynamic_sampling: bool = False


LADDER = (
    "overlong_filtering",
    "clip_higher",
    "soft_overlong_punishment",
    "token_level_loss",
    "dynamic_sampling",
)
"""The paper's Table 1 adds these to naive GRPO, in this order. Techniques registered later are not part of it."""

NAIVE_GRPO: frozenset[str] = frozenset()
DAPO = frozenset({"clip_higher", "soft_overlong_punishment", "token_level_loss", "dynamic_sampling"})
"""Switches that are on in the two references."""
