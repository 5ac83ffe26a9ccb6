"""Clip-Cov, KL-Cov and the mask of forking tokens."""

import math
import statistics

import pytest
import torch
from flat import random_batch, tensor
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.covariance import clip_cov_loss, kl_cov_loss, token_covariance, top_entropy_mask
from dapo_lit.objective.losses import clipped_policy_loss
from dapo_lit.objective.tokens import Tokens

CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def everything(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def covariance_of(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return token_covariance(Tokens(logprobs, logprobs, advantages, mask=mask))


def test_the_covariance_of_a_token_by_hand() -> None:
    # Means -2 and 1 over the first three; the fourth carries no loss.
    covariance = covariance_of(tensor(-1, -2, -3, 9), tensor(3, 1, -1, 9), torch.tensor([True, True, True, False]))
    assert covariance.tolist() == [2, 0, 2, 0]


def test_clip_cov_holds_back_tokens_between_the_bounds_alone() -> None:
    logprobs = tensor(-1, -2, -3, -2).requires_grad_()
    advantages = tensor(3, 1, -1, 1)
    loss = losses_of(
        clip_cov_loss, logprobs, logprobs.detach(), advantages, mask=everything(logprobs), **CLIP, frac=1.0
    )
    assert loss.tolist() == [0, -1, 0, -1]
    (slope,) = torch.autograd.grad(loss.sum(), logprobs)
    assert slope.tolist() == [0, -1, 0, -1]


def test_clip_cov_holds_back_at_least_one_and_at_most_its_share() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, advantages = torch.randn(2, 5000, generator=generator, dtype=torch.float64) * 2
    mask = everything(logprobs)
    candidates = covariance_of(logprobs, advantages, mask)
    candidates = (candidates > 1) & (candidates < 5)
    plain = losses_of(clipped_policy_loss, logprobs, logprobs, advantages, **CLIP)
    for frac, count in ((1e-5, 1), (2e-3, 10), (1.0, int(candidates.sum()))):
        loss = losses_of(
            clip_cov_loss, logprobs, logprobs, advantages, mask=mask, **CLIP, frac=frac, generator=generator
        )
        held_back = loss != plain
        assert held_back.sum() == count
        assert not (held_back & ~candidates).any()


def test_tokens_that_the_clip_cuts_are_no_candidates() -> None:
    logprobs, advantages = tensor(-1, -2, -3, -2), tensor(3, 1, -1, 1)
    old = tensor(-2, -2, -3, -2)  # the first token's ratio is e, beyond the bound
    loss = losses_of(clip_cov_loss, logprobs, old, advantages, mask=everything(old), **CLIP, frac=1.0)
    assert loss.tolist() == pytest.approx([-3.6, -1, 0, -1])


@pytest.mark.parametrize("seed", range(4))
def test_kl_cov_equals_a_loop_over_sorted_tokens(seed: int) -> None:
    _, logprobs, old, advantages = random_batch(seed)
    mask = torch.arange(len(old)) % 4 != 0
    loss = losses_of(kl_cov_loss, logprobs, old, advantages, mask=mask, frac=0.2, coefficient=1.5)
    chosen = [i for i in range(len(old)) if mask[i]]
    new, before, a = logprobs.tolist(), old.tolist(), advantages.tolist()
    mean_logp, mean_a = statistics.fmean(new[i] for i in chosen), statistics.fmean(a[i] for i in chosen)
    ranked = sorted(chosen, key=lambda i: (new[i] - mean_logp) * (a[i] - mean_a), reverse=True)
    penalised = set(ranked[: int(0.2 * len(chosen))])
    expected = [
        -a[i] * math.exp(new[i] - before[i]) + (1.5 * abs(new[i] - before[i]) if i in penalised else 0.0)
        for i in range(len(old))
    ]
    assert loss.tolist() == pytest.approx(expected)


def test_a_batch_without_loss_tokens_gives_numbers_and_no_error() -> None:
    nothing = torch.zeros(3, dtype=torch.bool)
    values = tensor(-1, -2, -3)
    assert losses_of(kl_cov_loss, values, values, tensor(1, 1, 1), mask=nothing).isfinite().all()
    assert losses_of(clip_cov_loss, values, values, tensor(1, 1, 1), mask=nothing, **CLIP).isfinite().all()
    assert top_entropy_mask(values, nothing, frac=0.2).tolist() == [False] * 3


def test_a_fifth_of_the_tokens_has_the_highest_entropy() -> None:
    generator = torch.Generator().manual_seed(2)
    entropy, mask = torch.rand(200, generator=generator), torch.arange(200) < 100
    kept = top_entropy_mask(entropy, mask, frac=0.2)
    assert kept.sum() == 20
    assert not (kept & ~mask).any()
    assert entropy[kept].min() > entropy[mask & ~kept].max()
    assert torch.equal(top_entropy_mask(entropy, mask, frac=1.0), mask)


def test_entropies_that_only_rounding_tells_apart_are_kept_together() -> None:
    entropy = torch.tensor([3.0, 2.0, 2.0 - 5e-7, 2.0 + 5e-7, 1.9999])
    assert top_entropy_mask(entropy, torch.ones(5, dtype=torch.bool), frac=0.4).tolist() == [True] * 4 + [False]
