"""Settings that can have no effect in a run, reported at its start so that nobody compares two arms that are the same,
and a learning rate that is far above the usual one.

What only the run itself can show, such as a penalty that never fires, is in the report of finished runs.
"""

from collections.abc import Collection
from operator import attrgetter

from dapo_lit.config import Algorithm, Config
from dapo_lit.recipe.switches import Objective
from dapo_lit.techniques import REGISTER

HIGH_RATE = 2e-5
"""Above it, full training of a pre-trained policy is likely to ruin it."""


def idle_settings(config: Config, objective: Objective) -> list[str]:
    """One line for each, with the idle key and the one that makes it so."""
    algorithm, takes = config.algorithm, objective.loss.options
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
    if algorithm.critic is not None and algorithm.critic.warmup_steps >= config.budget.steps:
        lines.append("the policy is not trained: critic.warmup_steps reaches budget.steps")
    optimizer, policy = algorithm.optimizer, config.policy
    if policy.path and policy.lora is None and optimizer.lr > HIGH_RATE:
        lines.append(
            f"algorithm.optimizer.lr={optimizer.lr:g} is high for the weights of a pre-trained policy; 1e-6 to 1e-5 is "
            "usual, and the default suits the tiny policies"
        )
    return lines


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
