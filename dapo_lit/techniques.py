"""The techniques of this trainer: all that configs, warnings, studies, reports and figures know about a switch.

Adding a technique takes four files: a record and a field of `Switches` here, the switch in conf/algorithm/dapo.yaml
(false), its function (in objective/ or rollout/), and its binding in switches/algorithm.py, the one place that reads
the switch.

A new switch is off by default, and runs that were made before it existed read as off. Register records, not code: this
file imports the records' types only, so that reading reports loads no framework.
"""

from ablations.metrics import Metric as Metric
from ablations.techniques import Caution, Condition, Lookup, OwnSetting, Technique, register


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


MEASURED = "chosen below what every study that decided its effect measured (docs/claims.yaml)"

register(
    (
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
                source=MEASURED,
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
                source=MEASURED,
            ),
            idle=(
                lambda get: (
                    f"clip.high equals clip.low ({get('clip.low')})"
                    if get("clip.high") is not None and get("clip.high") == get("clip.low")
                    else None
                ),
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
                source=MEASURED,
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
                source=MEASURED,
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
)


class Switches:
    """The fields of the config section `algorithm.techniques`."""

    overlong_filtering: bool = False
    clip_higher: bool = False
    soft_overlong_punishment: bool = False
    token_level_loss: bool = False
    dynamic_sampling: bool = False
