"""From config to plain values and functions: the one place where a technique's switch is read.

What comes out knows no switch any more. Each technique is marked at its line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dapo_lit.config import Algorithm, Config
from dapo_lit.config.algorithm import Correction
from dapo_lit.objective.correction import icepop_weights, sequence_mask_weights, truncated_weights
from dapo_lit.objective.losses import Aggregation, KLEstimator, completion_weights, kl_penalty
from dapo_lit.objective.shaping import overlong_filter_mask, soft_overlong_penalty
from dapo_lit.recipe.credit import credit
from dapo_lit.recipe.policy_loss import PolicyLoss, policy_loss
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.records import Group
from dapo_lit.rollout.step_collection import RewardFunction
from dapo_lit.step.packing import TokenBatch
from dapo_lit.step.token_axis import Credit, Scores


@dataclass(frozen=True)
class Objective:
    """What the module minimises. Tensors in, tensors out."""

    clip_low: float
    clip_high: float
    clip_dual: float | None
    loss: PolicyLoss
    entropy_bonus: float
    """Nats of entropy count this much against the loss of a token."""
    kl_beta: float
    """Weight of the divergence from the reference in the loss of a token; 0: not in the loss."""
    kl_estimator: KLEstimator | Literal["full"]
    credit: Callable[[TokenBatch, Scores], Credit]
    """What each token of a batch earned."""
    weights: Callable[..., Tensor]
    """(loss_tokens, group_index, micro_batch), each [B] of a whole mini-batch -> weight of each completion's tokens."""
    correction: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """(old_logprobs, rollout_logprobs, completions), each [N] -> weight of each token's policy loss; None: all 1."""

    def terms(
        self,
        logprobs: Tensor,
        ref_logprobs: Tensor | None,
        entropy: Tensor | None = None,
        exact_kl: Tensor | None = None,
    ) -> Tensor:
        """[n] what stands beside the policy's own loss of each token: the divergence and the entropy bonus.

        entropy: needed where there is a bonus.
        """
        terms = torch.zeros_like(logprobs)
        if self.kl_beta and self.kl_estimator == "full":
            assert exact_kl is not None
            terms = terms + self.kl_beta * exact_kl
        elif self.kl_beta and self.kl_estimator != "full" and ref_logprobs is not None:
            terms = terms + self.kl_beta * kl_penalty(logprobs, ref_logprobs, self.kl_estimator)
        if self.entropy_bonus and entropy is not None:
            terms = terms - self.entropy_bonus * entropy
        return terms


def objective(algorithm: Algorithm, max_response_tokens: int) -> Objective:
    """The loss of Eq. 8 with the bounds and the denominator that the switches ask for."""
    clip = algorithm.clip
    high = clip.high if algorithm.techniques.clip_higher else clip.low  # DAPO 3.1 clip-higher
    aggregation: Aggregation = (
        algorithm.token_level_denominator
        if algorithm.techniques.token_level_loss  # DAPO 3.3 token-level loss
        else algorithm.completion_level_denominator
    )
    return Objective(
        clip_low=clip.low,
        clip_high=high,
        clip_dual=clip.dual,
        loss=policy_loss(algorithm, clip_high=high),
        entropy_bonus=algorithm.entropy.bonus,
        kl_beta=algorithm.kl.beta if algorithm.kl.where == "loss" else 0.0,
        kl_estimator=algorithm.kl.estimator,
        credit=credit(algorithm),
        weights=partial(completion_weights, aggregation=aggregation, max_response_tokens=max_response_tokens),
        correction=correction(algorithm.correction),
    )


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
    """Groups -> [P, G] bool, True where a completion carries loss."""

    def of_groups(groups: Sequence[Group]) -> Tensor:
        truncated = torch.tensor([[c.truncated for c in g.completions] for g in groups])
        if algorithm.techniques.overlong_filtering:  # DAPO 3.4 overlong filtering
            return overlong_filter_mask(truncated)
        return torch.ones_like(truncated)

    return of_groups


def reward_function(config: Config) -> RewardFunction:
    """(score, response tokens, truncated) -> (Eq. 13 as computed, the reward that advantages see)."""
    overlong = config.algorithm.overlong
    limit = config.task.max_response_tokens
    # Eq. 13 for every possible length, once: a rollout step asks for thousands.
    penalties = soft_overlong_penalty(
        torch.arange(limit + 1),
        max_response_tokens=limit,
        cache_tokens=overlong.cache_tokens,
        factor=overlong.penalty_factor,
    ).tolist()
    soft = config.algorithm.techniques.soft_overlong_punishment  # DAPO 3.4 soft overlong punishment
    hard = overlong.hard_punishment and not soft

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
        filter_unmixed=algorithm.techniques.dynamic_sampling,  # DAPO 3.2 dynamic sampling
        max_rounds=sampling.max_rounds,
        on_exhausted=sampling.on_exhausted,
        carry_over=sampling.carry_over,
        max_staleness=sampling.max_staleness,
        margin=sampling.margin,
        window=sampling.window,
        request_groups=sampling.request_groups,
    )
