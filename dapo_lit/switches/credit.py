"""From the rewards of a batch to the advantage of each token, as the config asks for it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dapo_lit.config import Algorithm
from dapo_lit.objective.advantages import group_advantages, leave_one_out_advantages, whiten
from dapo_lit.objective.losses import kl_penalty
from dapo_lit.objective.returns import discounted_returns, gae, token_rewards
from dapo_lit.step.batch import TokenBatch
from dapo_lit.step.loss import TokenAxis


def credit(algorithm: Algorithm) -> Callable[[TokenBatch, TokenAxis], TokenAxis]:
    """(batch, tokens) -> the tokens with advantages and, for a critic, returns. Rewards are shaped already."""
    settings, kl = algorithm.advantage, algorithm.kl
    beta = kl.beta if kl.where == "reward" else 0.0

    def assign(batch: TokenBatch, tokens: TokenAxis) -> TokenAxis:
        lengths, penalty, returns = batch.response_lengths, None, None
        if beta:
            assert tokens.ref_logprobs is not None
            assert kl.estimator != "full"  # the config refuses it
            penalty = kl_penalty(tokens.old_logprobs, tokens.ref_logprobs, kl.estimator)
        rewards = token_rewards(batch.rewards, penalty, lengths, beta=beta)
        match settings.estimator:
            case "group":
                estimate = partial(
                    group_advantages,
                    scale_by_std=settings.scale_by_std,
                    unbiased_std=settings.unbiased_std,
                    epsilon=settings.epsilon,
                )
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
            advantages = whiten(advantages, tokens.loss_mask)
        return replace(tokens, advantages=advantages.float(), returns=returns)

    return assign


def _by_group(estimate: Callable[[Tensor], Tensor], rewards: Tensor, batch: TokenBatch) -> Tensor:
    """[N] what `estimate` gives for the summed token rewards [P, G] of each completion.

    Groups that lost a completion, whose verdict is missing, are smaller: those of one size go together.
    """
    totals = rewards.new_zeros(len(batch.sequences)).index_add_(0, batch.completion_of_token, rewards)
    sizes = batch.group_index.bincount()[batch.group_index]
    advantages = torch.empty_like(totals)
    for size in sizes.unique().tolist():
        advantages[sizes == size] = estimate(totals[sizes == size].reshape(-1, size)).flatten()
    return advantages[batch.completion_of_token]


def completion_means(values: Tensor, batch: TokenBatch) -> Tensor:
    """[B] float64 mean of `values` [N] over each completion's tokens; exact where they are equal."""
    sums = torch.zeros(len(batch.sequences), dtype=torch.float64)
    return sums.index_add_(0, batch.completion_of_token, values.double()) / batch.response_lengths
