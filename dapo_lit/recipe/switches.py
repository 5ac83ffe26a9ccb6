"""From config to plain values and functions: the one file where the switches of the techniques are read.

What comes out knows no switch any more. Each technique is marked at its line, here and at its arithmetic.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dapo_lit.config import Algorithm, Config, ConfigError
from dapo_lit.config.algorithm import Correction
from dapo_lit.objective.correction import icepop_weights, sequence_mask_weights, truncated_weights
from dapo_lit.objective.covariance import clip_cov_loss, kl_cov_loss
from dapo_lit.objective.losses import (
    Aggregation,
    cispo_loss,
    clipped_policy_loss,
    completion_weights,
    reinforce_loss,
)
from dapo_lit.objective.sequence_losses import gmpo_loss, gspo_loss, gspo_token_loss
from dapo_lit.objective.shaping import overlong_filtering, soft_overlong_punishment
from dapo_lit.recipe.credit import credit
from dapo_lit.recipe.custom_loss import check_loss, custom_loss
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.rank_sampling import RewardFunction
from dapo_lit.rollout.records import Group
from dapo_lit.step.objective import Objective, PolicyLoss

BUILT_IN_LOSSES = ("clip", "reinforce", "cispo", "gspo", "gspo_token", "gmpo", "clip_cov", "kl_cov")


def objective(algorithm: Algorithm, max_response_tokens: int) -> Objective:
    """The loss of Eq. 8 with the bounds and the denominator that the switches ask for.

    Raises:
        ConfigError: a policy loss that cannot be used.
    """
    clip = algorithm.clip
    clip_high = clip.high if algorithm.techniques.clip_higher else clip.low  # DAPO 3.1 clip-higher
    aggregation: Aggregation = (
        algorithm.token_level_denominator
        if algorithm.techniques.token_level_loss  # DAPO 3.3 token-level loss
        else algorithm.completion_level_denominator
    )
    return Objective(
        clip_low=clip.low,
        clip_high=clip_high,
        clip_dual=clip.dual,
        loss=policy_loss(algorithm, clip_high=clip_high),
        entropy_bonus=algorithm.entropy.bonus,
        kl_beta=algorithm.kl.beta if algorithm.kl.where == "loss" else 0.0,
        kl_estimator=algorithm.kl.estimator,
        recomputes_old_logprobs=algorithm.old_logprobs == "recompute",
        credit=credit(algorithm),
        weights=partial(completion_weights, aggregation=aggregation, max_response_tokens=max_response_tokens),
        correction=correction(algorithm.correction),
    )


def policy_loss(algorithm: Algorithm, *, clip_high: float) -> PolicyLoss:
    """The loss that `algorithm.loss` names; `clip_high` is the upper bound in effect.

    Raises:
        ConfigError: no such loss, an option that it does not take, or one from outside that cannot be used.
    """
    name, low, high, dual = algorithm.loss, algorithm.clip.low, clip_high, algorithm.clip.dual

    def built_in(
        function: Callable[..., Tensor],
        *,
        needs: tuple[str, ...] = (),
        takes: tuple[str, ...] = (),
        **bounds: float | None,
    ) -> PolicyLoss:
        for key in algorithm.loss_options:
            if key not in takes:
                raise ConfigError(f"algorithm.loss_options.{key}: {name} has no such option")
        filled = {**bounds, **algorithm.loss_options}
        return PolicyLoss(partial(function, **filled), needs, algorithm.entropy.top_frac, frozenset(filled))

    match name:
        case "clip":
            loss = built_in(clipped_policy_loss, clip_low=low, clip_high=high, clip_dual=dual)
        case "reinforce":
            loss = built_in(reinforce_loss)
        case "cispo":
            loss = built_in(cispo_loss, clip_low=low, clip_high=high)
        case "gspo":
            loss = built_in(gspo_loss, needs=("completions",), clip_low=low, clip_high=high)
        case "gspo_token":
            loss = built_in(gspo_token_loss, needs=("completions",), clip_low=low, clip_high=high)
        case "gmpo":
            loss = built_in(gmpo_loss, needs=("completions",), clip_low=low, clip_high=high)
        case "clip_cov":
            options = ("frac", "cov_low", "cov_high")
            loss = built_in(clip_cov_loss, needs=("mask", "generator"), takes=options, clip_low=low, clip_high=high)
        case "kl_cov":
            loss = built_in(kl_cov_loss, needs=("mask",), takes=("frac", "coefficient"))
        case _ if "." in name:  # package.module.function
            loss = custom_loss(algorithm, {"clip_low": low, "clip_high": high, "clip_dual": dual})
        case _:
            raise ConfigError(
                f"algorithm.loss={name}: no such loss; there are {', '.join(BUILT_IN_LOSSES)}, or give the path of a "
                "function of your own: package.module.function"
            )
    check_loss(loss, name)
    return loss


def correction(settings: Correction) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The weights for the gap between the engine's distribution and pi_old."""
    match settings.kind:
        case "none":
            return None
        case "tis":
            return lambda old, rollout, completions: truncated_weights(old, rollout, cap=settings.cap)
        case "icepop":
            low, high = settings.token_band
            return lambda old, rollout, completions: icepop_weights(old, rollout, low=low, high=high)
        case "sequence_mask":
            low, high = settings.sequence_band
            return partial(sequence_mask_weights, low=low, high=high)


def loss_mask(algorithm: Algorithm) -> Callable[[Sequence[Group]], Tensor]:
    """Groups -> [N] bool, True for each response token that carries loss."""

    def mask(groups: Sequence[Group]) -> Tensor:
        completions = [c for group in groups for c in group.completions]
        truncated = torch.tensor([c.truncated for c in completions])
        kept = torch.ones_like(truncated)
        if algorithm.techniques.overlong_filtering:  # DAPO 3.4 overlong filtering
            kept = overlong_filtering(truncated)
        return kept.repeat_interleave(torch.tensor([c.num_tokens for c in completions]))

    return mask


def reward_function(config: Config) -> RewardFunction:
    """(score, response tokens, truncated) -> (Eq. 13 as computed, the reward that advantages see)."""
    overlong = config.algorithm.overlong
    limit = config.task.max_response_tokens
    # Eq. 13 for every possible length, once: a rollout step asks for thousands.
    penalties = soft_overlong_punishment(
        torch.arange(limit + 1),
        max_response_tokens=limit,
        cache_tokens=overlong.cache_tokens,
        factor=overlong.penalty_factor,
    ).tolist()
    soft = config.algorithm.techniques.soft_overlong_punishment  # DAPO 3.4 soft overlong punishment
    hard = overlong.hard_punishment and not soft  # what section 3.4 starts from

    def reward(score: Score, num_tokens: int, truncated: bool) -> tuple[float, float]:
        penalty = penalties[num_tokens]
        correctness = config.reward.wrong_value if hard and truncated else score.value
        return penalty, correctness + penalty if soft else correctness

    return reward


def collection_rules(algorithm: Algorithm) -> CollectionRules:
    sampling = algorithm.dynamic_sampling
    return CollectionRules(
        num_prompts=algorithm.num_prompts,
        samples_per_prompt=algorithm.samples_per_prompt,
        dynamic_sampling=algorithm.techniques.dynamic_sampling,  # DAPO 3.2 dynamic sampling
        max_rounds=sampling.max_rounds,
        on_exhausted=sampling.on_exhausted,
        carry_over=sampling.carry_over,
        filter_on=sampling.filter_on,
        max_staleness=sampling.max_staleness,
        request_groups=sampling.request_groups,
    )
