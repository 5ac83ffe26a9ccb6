"""Settings that can have no effect in a run, or hardly the one that was meant, reported at its start so that nobody
compares two arms that are the same.

What only the run itself can show, such as a penalty that never fires, is named after its first steps
(`unused_techniques`) and in the report of finished runs.
"""

from collections.abc import Collection
from operator import attrgetter
from pathlib import Path

from dapo_lit.config import Algorithm, Config
from dapo_lit.preflight.table import Finding
from dapo_lit.run_files import read_row
from dapo_lit.switches.algorithm import Objective, objective
from dapo_lit.techniques import REGISTER

STEPS = 5
"""Steps that are looked at; fewer in a shorter run."""


def idle_settings(config: Config, bound: Objective) -> list[str]:
    """One line for each, with the idle key and the one that makes it so; `bound`: the objective of the config."""
    algorithm, takes = config.algorithm, bound.takes
    settings = algorithm.advantage
    faults = (
        (
            algorithm.clip.dual is not None and "clip_dual" not in takes,
            f"clip.dual={algorithm.clip.dual}: loss={algorithm.loss} has no such bound",
        ),
        (
            settings.estimator != "group" and not settings.scale_by_std,
            f"advantage.scale_by_std=false: advantage.estimator={settings.estimator} divides by no group's deviation",
        ),
        (
            settings.estimator in ("group", "leave_one_out") and settings.gamma < 1,
            f"advantage.gamma={settings.gamma:g}: advantage.estimator={settings.estimator} discounts nothing",
        ),
        (
            settings.estimator != "gae" and settings.lam < 1,
            f"advantage.lam={settings.lam:g}: advantage.estimator={settings.estimator} has no lambda",
        ),
        (algorithm.kl.where == "reward" and algorithm.kl.beta == 0, "kl.where=reward: kl.beta is 0"),
    )
    lines = [*_techniques(algorithm, takes), *(text for idle, text in faults if idle)]
    lines = [f"algorithm.{text}; no effect" for text in lines]
    if algorithm.techniques.clip_higher and "clip_high" in takes and algorithm.clip.high < algorithm.clip.low:
        lines.append(
            f"algorithm.clip.high={algorithm.clip.high:g} is below clip.low={algorithm.clip.low:g}: the upper bound "
            "is the tighter one, as in a control; were they swapped?"
        )
    if config.trainer.micro_batch_tokens < config.task.max_response_tokens:
        lines.append(
            f"trainer.micro_batch_tokens={config.trainer.micro_batch_tokens} is less than a response of "
            f"task.max_response_tokens={config.task.max_response_tokens}: long ones are trained on one at a time"
        )
    if algorithm.critic is not None and algorithm.critic.warmup_steps >= config.budget.steps:
        lines.append("the policy is not trained: critic.warmup_steps reaches budget.steps")
    return lines


def check_switches(config: Config) -> Finding:
    """Which techniques are on, with a warning for each setting that can have no effect."""
    on = [switch for switch in REGISTER if getattr(config.algorithm.techniques, switch)]
    lines = idle_settings(config, objective(config.algorithm, config.task.max_response_tokens))
    found = f"; {len(lines)} to look at" if lines else ""
    return Finding((", ".join(on) or "all off") + found, tuple(lines))


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


def unused_techniques(config: Config, metrics: Path) -> list[str]:
    """Techniques that are on and had next to nothing to act on in the first steps.

    One line for each, with the amount that was measured, the amount that is needed, and the key to change. A technique
    that its settings make idle is left out: the table before the first step has named it.
    """
    found = map(read_row, metrics.read_text().splitlines())
    rows = {row["step"]: row for row in found if row}.values()  # a resumed run repeats some, and a torn line is none
    lines = []
    for switch, technique in REGISTER.items():
        regime, on = technique.regime, getattr(config.algorithm.techniques, switch)
        if not on or any(idle(lambda key: attrgetter(key)(config.algorithm)) for idle in technique.idle):
            continue
        if (mean := regime.mean(rows, on)) is None:
            continue
        acts, amount = regime.amount(mean)
        if not acts:
            steps = sum(row["step"] > 0 for row in rows)
            lines.append(
                f"techniques.{switch} has had next to nothing to act on in {steps} steps: "
                f"{regime.metric_while_on or regime.metric} asks for {amount}. {regime.lever}".rstrip()
            )
    return lines
