"""From config to plain values and functions: the one file where the switches of the techniques are read. And from the
rewards of a batch to the advantage of each token, as the config asks for it.

The returned objects no longer depend on the switches. Each technique is marked at its line, here and at its arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dapo_lit.config import Algorithm, Config, ConfigError
from dapo_lit.objective.advantages import token_rewards, whiten
from dapo_lit.objective.covariance import top_entropy
from dapo_lit.objective.losses import Aggregation, completion_weights, kl_penalty
from dapo_lit.objective.shaping import overlong_filtering, soft_overlong_punishment
from dapo_lit.objective.tokens import Bounds, PolicyLoss, Statistics, Tokens, token_statistics
from dapo_lit.rollout.dynamic_sampling import CollectionRules
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import TokenBatch
from dapo_lit.step.loss import Objective, TokenData
from dapo_lit.switches.parts import (
    CONTROL,
    CORRECTION,
    ESTIMATOR,
    LOSS,
    PENALTY,
    TOKENS_AND_BOUNDS,
    Part,
    check_needs,
    check_rewards,
    interval,
    is_empty,
    own_metrics,
    own_techniques,
    parameters,
    part_of,
    parts_of,
)
from dapo_lit.switches.trials import check_change, check_control, check_keeps, check_loss, check_metric, check_part


def check_algorithm(config: Config) -> None:
    """Raises ConfigError where a part of the algorithm fails on a small batch, or needs what the run does not have."""
    objective(config.algorithm, config.task.max_response_tokens)
    loss_mask(config.algorithm)
    reward_shaping(config)
    check_rewards(config)  # asks the penalty, which has been tried out
    for metric in own_metrics(config):
        check_metric(metric)


def credit(algorithm: Algorithm) -> Callable[[TokenBatch, TokenData], TokenData]:
    """(batch, tokens) -> the tokens with advantages and, for a critic, returns. Rewards are shaped already."""
    settings, kl = algorithm.advantage, algorithm.kl
    beta = kl.beta if kl.where == "reward" else 0.0
    parts = [*parts_of(algorithm)]
    (estimator,) = (part for part in parts if part.slot is ESTIMATOR)
    check_part(estimator)
    changes = [own.advantages for own in own_techniques(algorithm) if own.advantages]
    for change in changes:
        check_change(change)

    def assign(batch: TokenBatch, tokens: TokenData) -> TokenData:
        lengths, penalty, returns = batch.response_lengths, None, None
        if beta:
            assert tokens.ref_logprobs is not None
            # Of the policy that sampled: a reward does not change during the updates.
            penalty = kl_penalty(tokens.old_logprobs, tokens.ref_logprobs, kl.estimator)
        # By token although most estimators use the sum: returns and GAE need to know where the penalty falls.
        rewards = token_rewards(batch.rewards, penalty, lengths, beta=beta, turns=batch.turn_rewards)
        for part in parts:
            _check_range(batch.rewards, part)
        if estimator.wants:
            of_batch = {"lengths": lengths, "values": tokens.values}
            found = estimator.function(rewards, **{key: of_batch[key] for key in estimator.wants})
            # With a critic also what its values are fitted to.
            advantages, returns = found if isinstance(found, tuple) else (found, None)
        else:
            advantages = _by_group(estimator.function, rewards, batch)
        for change in changes:
            advantages = change(advantages, batch.completion_of_token)
        if settings.whiten:
            # Over tokens that carry loss, of all ranks: batch statistics of a rank would depend on their number.
            advantages = whiten(advantages, tokens.loss_mask)
        returns = None if returns is None else returns.float()
        return replace(tokens, advantages=advantages.float(), returns=returns)

    return assign


def _check_range(rewards: Float64[Tensor, "B"], part: Part) -> None:
    """Raises ConfigError for rewards that a part does not work with; what a function gives, only this knows."""
    low, high = part.needs.rewards
    outside = rewards[(rewards < low) | (rewards > high)]
    if len(outside):
        raise ConfigError(
            f"algorithm.{part.setting} needs rewards of {interval(low, high)}, and {len(outside)} of {len(rewards)} "
            f"are none, such as {float(outside[0]):g}; change the reward function or this setting"
        )


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


def objective(algorithm: Algorithm, max_response_tokens: int) -> Objective:
    """The loss of Eq. 8 with the bounds and the denominator that the switches ask for.

    Raises ConfigError where a part of the algorithm cannot be used, or needs what the algorithm does not have.
    """
    check_needs(algorithm)
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
        entropy_control=entropy_control(algorithm),
        kl_beta=algorithm.kl.beta if algorithm.kl.where == "loss" else 0.0,
        kl_estimator=algorithm.kl.estimator,
        recomputes_old_logprobs=algorithm.old_logprobs == "recompute",
        credit=credit(algorithm),
        weights=partial(completion_weights, aggregation=aggregation, max_response_tokens=max_response_tokens),
        correction=correction(algorithm),
    )


def policy_loss(algorithm: Algorithm, bounds: Bounds) -> tuple[PolicyLoss, frozenset[str], bool]:
    """The loss that `algorithm.loss` names, the bounds and options it takes, and if it needs whole mini-batches."""
    in_effect = {"clip_low": bounds.low, "clip_high": bounds.high, "clip_dual": bounds.dual}
    part = part_of(LOSS, algorithm, in_effect)
    # A loss that names one of these looks at other tokens than its own.
    whole_minibatch = part.needs.whole_minibatch or bool(part.wants)
    loss: PolicyLoss = part.function if takes_records(part) else _of_tokens(part)
    if algorithm.entropy.top_frac < 1:
        loss, whole_minibatch = top_entropy(loss, frac=algorithm.entropy.top_frac), True
    # Here, before anything is sampled: a loss that fails would fail after the first rollout.
    check_loss(loss, bounds, part.name, whole_minibatch)
    return loss, part.reads, whole_minibatch


def takes_records(part: Part) -> bool:
    """True for a loss of (tokens, bounds), which measures its tokens by itself."""
    return parameters(LOSS, part.name, part.function)[0] == TOKENS_AND_BOUNDS


def _of_tokens(part: Part) -> PolicyLoss:
    """A loss of (logprobs, old_logprobs, advantages) as one of the records."""

    def loss(tokens: Tokens, bounds: Bounds) -> tuple[Tensor, Statistics]:
        wanted = {key: getattr(tokens, key) for key in part.wants}
        losses = part.function(tokens.logprobs, tokens.old_logprobs, tokens.advantages, **wanted)
        return losses, token_statistics(tokens, bounds)

    return loss


def correction(algorithm: Algorithm) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The weights for the gap between the engine's distribution and pi_old."""
    # None and not weights of 1: the multiplication would read and write every token.
    if is_empty(CORRECTION, algorithm):
        return None
    part = part_of(CORRECTION, algorithm)
    check_part(part)

    @torch.no_grad()
    def weights(old: Tensor, rollout: Tensor, completions: Tensor) -> Tensor:
        return part.function(old, rollout, **({"completions": completions} if part.wants else {}))

    return weights


def entropy_control(algorithm: Algorithm) -> Callable[[float, float], tuple[float, float]] | None:
    """What moves the coefficient of the entropy bonus from step to step."""
    if is_empty(CONTROL, algorithm):
        return None
    part = part_of(CONTROL, algorithm)
    check_control(part)
    return part.function


def loss_mask(algorithm: Algorithm) -> Callable[[Sequence[Group]], Tensor]:
    """Groups -> [N] bool, True for each response token that carries loss."""

    rules = [own.keeps for own in own_techniques(algorithm) if own.keeps]
    for keeps in rules:
        check_keeps(keeps)

    def mask(groups: Sequence[Group]) -> Tensor:
        completions = [c for group in groups for c in group.completions]
        truncated = torch.tensor([c.truncated for c in completions], device="cpu")
        kept = torch.ones_like(truncated)
        if algorithm.techniques.overlong_filtering:  # DAPO 3.4 overlong filtering
            kept = overlong_filtering(truncated)
        if rules:
            lengths = torch.tensor([c.num_tokens for c in completions], device="cpu")
            correct = torch.tensor([c.correct for c in completions], device="cpu")
        for keeps in rules:
            kept = kept & keeps(lengths, truncated, correct)
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
    share_of = part_of(PENALTY, config.algorithm)
    check_part(share_of)
    soft = config.algorithm.techniques.soft_overlong_punishment  # DAPO 3.4 soft overlong punishment
    hard = overlong.hard_punishment and not soft  # what section 3.4 starts from

    def shape(completions: Sequence[Completion]) -> None:
        # A missing verdict is no right answer that could make a group mixed.
        correct = torch.tensor([c.correct and not c.score.missing for c in completions], device="cpu")
        shares = share_of.function(correct).tolist()
        for completion, share in zip(completions, shares, strict=True):
            # Recorded in every arm, so that arms with and without the technique have the same metric.
            length = len(completion.sample.row_ids) if counts_all else completion.num_tokens
            completion.length_penalty = penalties[length]
            outcome = config.reward.wrong_value if hard and completion.truncated else completion.reward
            completion.reward_shaped = outcome + completion.turn_reward
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
