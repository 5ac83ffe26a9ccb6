"""Settings that can have no effect in a run, or hardly the one that was meant, reported at its start so that nobody
compares two arms that are the same.

What only the run can show is reported after its first steps: techniques that had next to nothing to act on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from dapo_lit.config import Algorithm, Config
from dapo_lit.preflight.table import Finding
from dapo_lit.switches.algorithm import Objective, objective
from dapo_lit.techniques import REGISTER


def idle_settings(config: Config, bound: Objective) -> list[str]:
    """One line for each, with the idle key and the one that makes it so; `bound`: the objective of the config."""
    algorithm = config.algorithm
    lines = [f"algorithm.{text}; no effect" for text in [*_techniques(algorithm, bound.takes), *_punished(algorithm)]]
    if algorithm.techniques.clip_higher and "clip_high" in bound.takes and algorithm.clip.high < algorithm.clip.low:
        lines.append(
            f"algorithm.clip.high={algorithm.clip.high:g} is below clip.low={algorithm.clip.low:g}: the upper bound "
            "is the tighter one, as in a control; were they swapped?"
        )
    lines += _extremes(config)
    if algorithm.critic is not None and algorithm.critic.warmup_steps >= config.budget.steps:
        lines.append("the policy is not trained: critic.warmup_steps reaches budget.steps")
    return lines


EXTREME: dict[str, tuple[Callable[[float], bool], str]] = {
    "rollout.temperature": (
        lambda value: not 0.05 <= value <= 5,
        "samples are all but uniform over the vocabulary above 5, all but greedy and alike below 0.05",
    ),
    "algorithm.entropy.bonus": (
        lambda value: value > 1,
        "outweighs every advantage, whose standard deviation is about 1",
    ),
    "algorithm.kl.beta": (lambda value: value > 10, "the KL term outweighs every advantage"),
    "algorithm.optimizer.lr": (lambda value: value > 0.1, "an update of AdamW moves each weight by about so much"),
}
"""Values that are allowed and that nobody means: a slip of some powers of ten."""


def _extremes(config: Config) -> Iterator[str]:
    for key, (is_extreme, what) in EXTREME.items():
        if is_extreme(value := float(attrgetter(key)(config))):
            yield f"{key}={value:g}: {what}"


FIRST_STEPS = 5
"""Rollout steps after which a run says what its techniques had to act on."""


def idle_techniques(algorithm: Algorithm, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each technique that is on and had next to nothing to act on in these rows of metrics."""
    lines = []
    for switch, technique in REGISTER.items():
        if not getattr(algorithm.techniques, switch):
            continue
        acts, measured = technique.condition.judged(rows, on=True)
        if acts is False:
            lines.append(
                f"techniques.{switch} had next to nothing to act on in steps {rows[0]['step']} to {rows[-1]['step']}: "
                f"{measured}. {technique.condition.lever}"
            )
    return lines


def check_switches(config: Config) -> Finding:
    """Lists the techniques that are on, with a warning for each setting that can have no effect."""
    on = [switch for switch in REGISTER if getattr(config.algorithm.techniques, switch)]
    lines = idle_settings(config, objective(config.algorithm, config.task.max_response_tokens))
    found = f"; {len(lines)} to look at" if lines else ""
    return Finding((", ".join(on) or "all off") + found, tuple(lines))


def _punished(algorithm: Algorithm) -> list[str]:
    sampling, on = algorithm.dynamic_sampling, algorithm.techniques
    by_verdict = sampling.filter_on == "correctness" and sampling.on_exhausted != "top_up"
    if algorithm.overlong.punish == "mixed" and on.soft_overlong_punishment and on.dynamic_sampling and by_verdict:
        return ["overlong.punish=mixed: dynamic sampling trains on no group without a right answer"]
    return []


def _techniques(algorithm: Algorithm, takes: Collection[str]) -> list[str]:
    """Switches that are on for nothing, and settings that belong to a switch in its other position."""
    lines = []
    for switch, technique in REGISTER.items():
        on, argument = getattr(algorithm.techniques, switch), technique.loss_argument
        reasons = [reason for idle in technique.idle if (reason := idle(lambda key: attrgetter(key)(algorithm)))]
        if argument and argument[0] not in takes:
            reasons = [f"loss={algorithm.loss} has no {argument[1]}"]
        lines += [f"techniques.{switch}=true: {reason}" for reason in reasons if on]
        for setting in technique.settings:
            value = attrgetter(setting.key)(algorithm)
            if on != setting.while_on and value != setting.neutral:
                lines.append(f"{setting.key}={value}: techniques.{switch} is {'on' if on else 'off'}")
    return lines
