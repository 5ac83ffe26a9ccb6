"""Settings that can have no effect in a run: told at its start, so that nobody compares two arms that are one.

What only the run can show, a penalty that never fires, is in the report of finished runs.
"""

from dapo_lit.config import Config
from dapo_lit.recipe.switches import Objective


def idle_settings(config: Config, objective: Objective) -> list[str]:
    """One line for each, with the key that is idle and the one that makes it so."""
    algorithm = config.algorithm
    techniques, settings, sampling = algorithm.techniques, algorithm.advantage, algorithm.dynamic_sampling
    takes = objective.loss.options
    never_moves = algorithm.num_prompts == algorithm.minibatch_prompts and algorithm.epochs == 1
    on_policy = never_moves and algorithm.old_logprobs == "recompute"
    by_group = settings.estimator in ("group", "leave_one_out")
    faults = (
        (
            techniques.soft_overlong_punishment and algorithm.overlong.cache_tokens == 0,
            "techniques.soft_overlong_punishment=true: overlong.cache_tokens=0 punishes responses above the limit, and "
            "none is longer",
        ),
        (
            techniques.clip_higher and algorithm.clip.high == algorithm.clip.low,
            f"techniques.clip_higher=true: clip.high equals clip.low ({algorithm.clip.low:g})",
        ),
        (
            techniques.clip_higher and "clip_high" not in takes,
            f"techniques.clip_higher=true: loss={algorithm.loss} has no upper bound",
        ),
        (
            techniques.clip_higher and "clip_high" in takes and on_policy,
            "techniques.clip_higher=true: with one update a step (minibatch_prompts=num_prompts, epochs=1) every ratio "
            "is 1",
        ),
        (
            algorithm.clip.dual is not None and "clip_dual" not in takes,
            f"clip.dual={algorithm.clip.dual}: loss={algorithm.loss} has no such bound",
        ),
        (
            techniques.dynamic_sampling and sampling.max_rounds == 1 and sampling.on_exhausted == "top_up",
            "techniques.dynamic_sampling=true: dynamic_sampling.max_rounds=1 with on_exhausted=top_up trains on every "
            "group that is generated",
        ),
        (
            not techniques.dynamic_sampling and sampling.carry_over != "none",
            f"dynamic_sampling.carry_over={sampling.carry_over}: without techniques.dynamic_sampling no group is left",
        ),
        (
            not techniques.token_level_loss and algorithm.token_level_denominator != "minibatch",
            f"token_level_denominator={algorithm.token_level_denominator}: techniques.token_level_loss is off",
        ),
        (
            techniques.token_level_loss and algorithm.completion_level_denominator != "sample",
            f"completion_level_denominator={algorithm.completion_level_denominator}: techniques.token_level_loss is on",
        ),
        (
            settings.estimator != "group" and not settings.scale_by_std,
            f"advantage.scale_by_std=false: advantage.estimator={settings.estimator} divides by no group's deviation",
        ),
        (
            by_group and settings.gamma < 1,
            f"advantage.gamma={settings.gamma:g}: advantage.estimator={settings.estimator} discounts nothing",
        ),
        (
            settings.estimator != "gae" and settings.lam < 1,
            f"advantage.lam={settings.lam:g}: advantage.estimator={settings.estimator} has no lambda",
        ),
        (
            algorithm.kl.where == "reward" and algorithm.kl.beta == 0,
            "kl.where=reward: kl.beta is 0",
        ),
        (
            algorithm.critic is not None and algorithm.critic.warmup_steps >= config.budget.steps,
            "the policy is not trained: critic.warmup_steps reaches budget.steps",
        ),
    )
    return [f"algorithm.{text}; no effect" if "=" in text.split(":")[0] else text for idle, text in faults if idle]
