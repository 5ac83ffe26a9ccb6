"""From config to plain values and functions: the one file where the switches of the techniques are read. And from the
rewards of a batch to the advantage of each token, as the config asks for it.

The returned objects no longer depend on the switches. Each technique is marked at its line, here and at its arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dapo_lit.config import Algorithm, Config, ConfigError
from dapo_lit.config.algorithm import Correction
from dapo_lit.objective.advantages import (
    discounted_returns,
    gae,
    group_advantages,
    leave_one_out_advantages,
    token_rewards,
    whiten,
)
from dapo_lit.objective.correction import icepop_weights, sequence_mask_weights, truncated_weights
from dapo_lit.objective.covariance import clip_cov_loss, kl_cov_loss, top_entropy
from dapo_lit.objective.losses import (
    Aggregation,
    cispo_loss,
    clipped_policy_loss,
    completion_weights,
    gmpo_loss,
    gspo_loss,
    kl_penalty,
    reinforce_loss,
)
from dapo_lit.objective.shaping import overlong_filtering, punished, soft_overlong_punishment
from dapo_lit.objective.tokens import Bounds, PolicyLoss, Statistics
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import TokenBatch
from dapo_lit.step.loss import Objective, TokenData
from dapo_lit.switches.custom_loss import check_loss, custom_loss


def credit(algorithm: Algorithm) -> Callable[[TokenBatch, TokenData], TokenData]:
    """(batch, tokens) -> the tokens with advantages and, for a critic, returns. Rewards are shaped already."""
    settings, kl = algorithm.advantage, algorithm.kl
    beta = kl.beta if kl.where == "reward" else 0.0

    def assign(batch: TokenBatch, tokens: TokenData) -> TokenData:
        lengths, penalty, returns = batch.response_lengths, None, None
        if beta:
            assert tokens.ref_logprobs is not None
            # Of the policy that sampled: a reward does not change during the updates.
            penalty = kl_penalty(tokens.old_logprobs, tokens.ref_logprobs, kl.estimator)
        # By token although most estimators use the sum: returns and GAE need to know where the penalty falls.
        rewards = token_rewards(batch.rewards, penalty, lengths, beta=beta)
        match settings.estimator:
            case "group":
                estimate = partial(group_advantages, scale_by_std=settings.scale_by_std, epsilon=settings.epsilon)
                advantages = _by_group(estimate, rewards, batch)
            case "leave_one_out":
                advantages = _by_group(leave_one_out_advantages, rewards, batch)
            case "returns":
                advantages = discounted_returns(rewards, lengths, gamma=settings.gamma)
            case "gae":
                assert tokens.values is not None
                advantages, returns = gae(rewards, tokens.values, lengths, gamma=settings.gamma, lam=settings.lam)
                returns = returns.float()
        if settings.whiten:
            # Over tokens that carry loss, of all ranks: batch statistics of a rank would depend on their number.
            advantages = whiten(advantages, tokens.loss_mask)
        return replace(tokens, advantages=advantages.float(), returns=returns)

    return assign


def _by_group(
    estimate: Callable[[Float[Tensor, "P G"]], Float[Tensor, "P G"]], rewards: Float[Tensor, "N"], batch: TokenBatch
) -> Float[Tensor, "N"]:
    """What `estimate` gives for the summed token rewards of each completion.

    Groups that lost a completion, whose verdict is missing, are smaller: those of one size go together.
    """
    totals = rewards.new_zeros(len(batch.sequences)).index_add_(0, batch.completion_of_token, rewards)
    sizes = batch.group_index.bincount()[batch.group_index]
    advantages = torch.empty_like(totals)
    # One call a size instead of one a group: a batch has hundreds of groups and few sizes.
    for size in sizes.unique().tolist():
        advantages[sizes == size] = estimate(totals[sizes == size].reshape(-1, size)).flatten()
    return advantages[batch.completion_of_token]


def completion_means(values: Float[Tensor, "N"], batch: TokenBatch) -> Float64[Tensor, "B"]:
    """Mean of `values` over each completion's tokens; exact where they are equal."""
    sums = torch.zeros(len(batch.sequences), dtype=torch.float64, device="cpu")
    return sums.index_add_(0, batch.completion_of_token, values.double()) / batch.response_lengths


@dataclass(frozen=True)
class _BuiltIn:
    function: Callable[..., tuple[Tensor, Statistics]]
    """A PolicyLoss, with its options as keyword arguments."""
    bounds: tuple[str, ...] = ("clip_low", "clip_high")
    """Those of the clip that have an effect."""
    options: tuple[str, ...] = ()
    whole_minibatch: bool = False
    """The loss of a token depends on other tokens of its mini-batch."""
    of_completions: bool = False
    """The same number at all tokens of a completion."""


BUILT_IN_LOSSES = {
    "clip": _BuiltIn(clipped_policy_loss, ("clip_low", "clip_high", "clip_dual")),
    "reinforce": _BuiltIn(reinforce_loss, ()),
    "cispo": _BuiltIn(cispo_loss),
    "gspo": _BuiltIn(gspo_loss, whole_minibatch=True, of_completions=True),
    "gmpo": _BuiltIn(gmpo_loss, whole_minibatch=True, of_completions=True),
    "clip_cov": _BuiltIn(clip_cov_loss, options=("frac", "cov_low", "cov_high"), whole_minibatch=True),
    "kl_cov": _BuiltIn(kl_cov_loss, (), ("frac", "coefficient"), whole_minibatch=True),
}


def objective(algorithm: Algorithm, max_response_tokens: int) -> Objective:
    """The loss of Eq. 8 with the bounds and the denominator that the switches ask for."""
    clip = algorithm.clip
    clip_high = clip.high if algorithm.techniques.clip_higher else clip.low  # DAPO 3.1 clip-higher
    aggregation: Aggregation = (
        algorithm.token_level_denominator
        if algorithm.techniques.token_level_loss  # DAPO 3.3 token-level loss
        else algorithm.completion_level_denominator
    )
    bounds = Bounds(clip.low, clip_high, clip.dual)
    loss, takes, whole_minibatch = policy_loss(algorithm, bounds)
    return Objective(
        policy_loss=loss,
        bounds=bounds,
        takes=takes,
        whole_minibatch=whole_minibatch,
        entropy_bonus=algorithm.entropy.bonus,
        kl_beta=algorithm.kl.beta if algorithm.kl.where == "loss" else 0.0,
        kl_estimator=algorithm.kl.estimator,
        recomputes_old_logprobs=algorithm.old_logprobs == "recompute",
        credit=credit(algorithm),
        weights=partial(completion_weights, aggregation=aggregation, max_response_tokens=max_response_tokens),
        correction=correction(algorithm.correction),
    )


def policy_loss(algorithm: Algorithm, bounds: Bounds) -> tuple[PolicyLoss, frozenset[str], bool]:
    """The loss that `algorithm.loss` names, the bounds and options it takes, and if it needs whole mini-batches."""
    name, options = algorithm.loss, algorithm.loss_options
    loss: PolicyLoss
    if name in BUILT_IN_LOSSES:
        built_in = BUILT_IN_LOSSES[name]
        for key in options:
            if key not in built_in.options:
                raise ConfigError(f"algorithm.loss_options.{key}: {name} has no such option")
        loss, whole_minibatch = partial(built_in.function, **options), built_in.whole_minibatch
        takes = frozenset((*built_in.bounds, *options))
    elif "." in name:  # package.module.function
        loss, takes, whole_minibatch = custom_loss(name, options, bounds)
    else:
        raise ConfigError(
            f"algorithm.loss={name}: no such loss; there are {', '.join(BUILT_IN_LOSSES)}, or give the path of a "
            "function of your own: package.module.function"
        )
    if algorithm.entropy.top_frac < 1:
        loss, whole_minibatch = top_entropy(loss, frac=algorithm.entropy.top_frac), True
    # Here, before anything is sampled: a loss that fails would fail after the first rollout.
    check_loss(loss, bounds, name, whole_minibatch)
    return loss, takes, whole_minibatch


BANDS = {
    "tis": (0.0, 2.0),  # Yao et al. 2025, as in verl
    "sequence_mask": (0.0, 2.0),  # Liu et al. 2025, as in verl's seq_mis
    "icepop": (0.5, 5.0),
}


def correction(settings: Correction) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The weights for the gap between the engine's distribution and pi_old."""
    # None and not weights of 1: the multiplication would read and write every token.
    if settings.kind == "none":
        return None
    low, high = settings.band or BANDS[settings.kind]
    match settings.kind:
        case "tis":
            return lambda old, rollout, completions: truncated_weights(old, rollout, cap=high)
        case "icepop":
            return lambda old, rollout, completions: icepop_weights(old, rollout, low=low, high=high)
        case "sequence_mask":
            return partial(sequence_mask_weights, low=low, high=high)


def loss_mask(algorithm: Algorithm) -> Callable[[Sequence[Group]], Tensor]:
    """Groups -> [N] bool, True for each response token that carries loss."""

    def mask(groups: Sequence[Group]) -> Tensor:
        completions = [c for group in groups for c in group.completions]
        truncated = torch.tensor([c.truncated for c in completions], device="cpu")
        kept = torch.ones_like(truncated)
        if algorithm.techniques.overlong_filtering:  # DAPO 3.4 overlong filtering
            kept = overlong_filtering(truncated)
        return kept.repeat_interleave(torch.tensor([c.num_tokens for c in completions], device="cpu"))

    return mask


def reward_shaping(config: Config) -> Callable[[Sequence[Completion]], None]:
    """Gives the completions of a group their length penalty (Eq. 13 as computed) and the reward that advantages see."""
    overlong = config.algorithm.overlong
    limit = config.task.max_response_tokens
    # Eq. 13 for every possible length, once: a rollout step asks for thousands.
    counts_all = overlong.counts == "all"
    penalties = soft_overlong_punishment(
        torch.arange(limit + 1 + (config.turns.most_observed if counts_all else 0), device="cpu"),
        max_response_tokens=limit,
        cache_tokens=overlong.cache_tokens,
        factor=overlong.penalty_factor,
    ).tolist()
    soft = config.algorithm.techniques.soft_overlong_punishment  # DAPO 3.4 soft overlong punishment
    hard = overlong.hard_punishment and not soft  # what section 3.4 starts from

    def shape(completions: Sequence[Completion]) -> None:
        # A missing verdict is no right answer that could make a group mixed.
        correct = torch.tensor([c.correct and not c.score.missing for c in completions], device="cpu")
        shares = punished(correct, overlong.punish).tolist()
        for completion, share in zip(completions, shares, strict=True):
            # Recorded in every arm, so that arms with and without the technique have the same metric.
            length = len(completion.sample.row_ids) if counts_all else completion.num_tokens
            completion.length_penalty = penalties[length]
            completion.reward_shaped = config.reward.wrong_value if hard and completion.truncated else completion.reward
            if soft:
                # Added to the correctness reward, not in its place (Eq. 13 is a term of R).
                completion.reward_shaped += share * completion.length_penalty

    return shape


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
        pass_rate_margin=sampling.pass_rate_margin,
        max_staleness=sampling.max_staleness,
        # Without dynamic sampling one round is the batch; waiting for parts of it would change nothing but the cost.
        request_groups=sampling.request_groups if algorithm.techniques.dynamic_sampling else None,
    )
