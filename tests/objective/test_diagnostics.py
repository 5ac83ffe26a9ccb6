"""The diagnostics: definitions by hand, against a slow loop, and their sums over any split."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapo_lit.objective.diagnostics import finish, gradient_noise, mismatch_statistics, reference_statistics
from dapo_lit.objective.losses import clipped_policy_loss
from dapo_lit.objective.tokens import NOTHING, Bounds, Statistics, Tokens, merge, token_statistics

KEYS = {
    "clip/low_frac", "clip/high_frac", "clip/symmetric_high_frac", "clip/symmetric_high_frac_last_epoch",
    "clip/low_frac_last_epoch", "clip/high_frac_last_epoch", "clip/dual_frac", "clip/high_prob_mean",
    "clip/high_prob_max", "policy/kl_old", "policy/kl_ref", "policy/ratio_max", "policy/prob_mean", "policy/entropy",
    "policy/entropy_seq_mean", "mismatch/kl", "mismatch/prob_diff_max", "mismatch/correction_mean",
    "mismatch/masked_frac",
}  # fmt: skip
NAN = math.nan
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def policy_statistics(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
    entropy: Tensor,
) -> Statistics:
    """Of the tokens in `mask`; [B, T] has a completion in each row."""
    fields = (logprobs, old_logprobs, advantages, entropy, mask.sum(dim=1, keepdim=True))
    tokens = Tokens(*(x.expand(mask.shape)[mask] for x in fields))
    return token_statistics(tokens, Bounds(clip_low, clip_high, clip_dual))


def test_every_key_is_there_and_null_where_there_is_nothing_to_average() -> None:
    assert finish(NOTHING) == dict.fromkeys(KEYS)
    zeros, nothing = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    empty = policy_statistics(zeros, zeros, zeros, nothing, **CLIP, clip_dual=None, entropy=zeros)
    assert finish(merge(empty, mismatch_statistics(zeros, zeros, nothing))) == dict.fromkeys(KEYS)


def test_mismatch_by_hand() -> None:
    trainer, engine = rows([0.5, 0.3, NAN]).log(), rows([0.25, 0.35, NAN]).log()
    metrics = finish(mismatch_statistics(trainer, engine, torch.tensor([[True, True, False]])))
    ratio = [2.0, 0.3 / 0.35]
    assert metrics["mismatch/kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratio) / 2)
    assert metrics["mismatch/prob_diff_max"] == pytest.approx(0.25)


def test_bfloat16_inputs_are_summed_at_full_precision() -> None:
    # The sum of 4,097 entropies of 1.0 is 4,096 in bfloat16.
    ones = torch.ones(1, 4097, dtype=torch.bfloat16)
    statistics = policy_statistics(-ones, -ones, ones, ones.bool(), **CLIP, clip_dual=None, entropy=ones)
    metrics = finish(statistics)
    assert metrics["policy/entropy"] == 1.0
    assert metrics["policy/prob_mean"] == pytest.approx(math.exp(-1))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, old log-probs and entropy [B, T], advantages [B, 1], lengths [B]."""
    lengths = torch.tensor(draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    shape = (len(lengths), max(1, int(lengths.max())))
    old = -torch.rand(shape, generator=generator, dtype=torch.float64) * 3 - 0.01
    new = old + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    entropy = torch.rand(shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(shape[0], 1, generator=generator, dtype=torch.float64)
    return new, old, entropy, advantages, lengths


def statistics_of(batch: tuple[Tensor, ...], keep: Tensor | slice = slice(None)) -> Statistics:
    new, old, entropy, advantages, lengths = (x[keep] for x in batch)
    mask = torch.arange(new.shape[1]) < lengths[:, None]
    policy = policy_statistics(new, old, advantages, mask, **CLIP, clip_dual=1.5, entropy=entropy)
    return merge(policy, mismatch_statistics(new, old, mask))


@settings(max_examples=40, deadline=None)
@given(batches())
def test_metrics_equal_a_slow_loop(batch: tuple[Tensor, ...]) -> None:
    new, old, entropy, advantages, lengths = (x.tolist() for x in batch)
    tokens = [
        (math.exp(new[b][t] - old[b][t]), math.exp(old[b][t]), math.exp(new[b][t]), entropy[b][t], advantages[b][0])
        for b, length in enumerate(lengths)
        for t in range(length)
    ]
    metrics = finish(statistics_of(batch))
    if not tokens:
        assert metrics == dict.fromkeys(KEYS)
        return
    up = [p for r, p, _, _, a in tokens if a > 0 and r > 1.28]
    k3 = sum(r - 1 - math.log(r) for r, *_ in tokens) / len(tokens)
    sequence_means = [sum(entropy[b][:n]) / n for b, n in enumerate(lengths) if n > 0]
    expected = {
        "clip/low_frac": sum(a < 0 and r < 0.8 for r, _, _, _, a in tokens) / len(tokens),
        "clip/high_frac": len(up) / len(tokens),
        "clip/symmetric_high_frac": sum(a > 0 and r > 1.2 for r, _, _, _, a in tokens) / len(tokens),
        "clip/dual_frac": sum(a < 0 and r > 1.5 for r, _, _, _, a in tokens) / len(tokens),
        "policy/kl_old": k3,
        "policy/ratio_max": max(r for r, *_ in tokens),
        "policy/prob_mean": sum(p for _, p, *_ in tokens) / len(tokens),
        "policy/entropy": sum(e for _, _, _, e, _ in tokens) / len(tokens),
        "policy/entropy_seq_mean": sum(sequence_means) / len(sequence_means),
        "mismatch/kl": k3,
        "mismatch/prob_diff_max": max(abs(p - q) for _, p, q, _, _ in tokens),
    }
    of_last_epoch = ("clip/low_frac", "clip/high_frac", "clip/symmetric_high_frac")
    expected |= {f"{key}_last_epoch": expected[key] for key in of_last_epoch}
    if up:
        expected |= {"clip/high_prob_mean": sum(up) / len(up), "clip/high_prob_max": max(up)}
    assert {k: v for k, v in metrics.items() if v is not None} == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(batches(), st.integers(0, 20))
def test_tokens_that_are_split_anywhere_add_up_to_the_same_metrics(batch: tuple[Tensor, ...], cut: int) -> None:
    new, old, entropy, advantages, lengths = batch
    mask, bounds = torch.arange(new.shape[1]) < lengths[:, None], Bounds(0.2, 0.28, 1.5)
    flat = [x.expand(mask.shape)[mask] for x in (new, old, advantages, entropy, lengths[:, None])]
    parts = [token_statistics(Tokens(*(x[part] for x in flat)), bounds) for part in (slice(cut), slice(cut, None))]
    found, expected = finish(merge(*parts)), finish(token_statistics(Tokens(*flat), bounds))
    assert {k: v for k, v in found.items() if v is not None} == pytest.approx(
        {k: v for k, v in expected.items() if v is not None}
    )


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([torch.float32, torch.float64]))
def test_the_clip_shares_count_exactly_the_tokens_that_the_loss_gives_no_gradient(
    batch: tuple[Tensor, ...], dtype: torch.dtype
) -> None:
    new, old, _, advantages, _ = (x.to(dtype) for x in batch)
    new.requires_grad_()
    losses, (sums, _) = clipped_policy_loss(Tokens(new, old, advantages.expand(new.shape)), Bounds(0.2, 0.28, 1.5))
    losses.sum().backward()
    assert new.grad is not None
    clipped = sums["clip_low"] + sums["clip_high"] + sums["clip_dual"]
    assert clipped.item() == (new.grad == 0).sum().item()


def test_equal_gradients_have_no_noise() -> None:
    # Equal gradients of norm 3, four times: no noise. Rounding must not make it negative.
    assert gradient_noise(4 * 9.0, (4 * 3.0) ** 2, 4) == 0.0
    assert gradient_noise(4 * 9.0 - 1e-12, (4 * 3.0) ** 2, 4) == 0.0


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 2**16))
def test_gradient_noise_equals_the_definition_from_the_gradients_themselves(
    num_updates: int, size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(num_updates, size, generator=generator, dtype=torch.float64) + 0.5
    mean = gradients.mean(dim=0)
    expected = (gradients - mean).square().sum() / (num_updates - 1) / mean.square().sum()
    result = gradient_noise(gradients.square().sum(), gradients.sum(dim=0).square().sum(), num_updates)
    assert result == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("squares", "squared_sum", "num_updates"), [(0.0, 0.0, 0), (4.0, 4.0, 1), (2.0, 0.0, 2)])
def test_one_update_or_a_vanishing_sum_has_no_gradient_noise(
    squares: float, squared_sum: float, num_updates: int
) -> None:
    assert gradient_noise(squares, squared_sum, num_updates) is None


def test_the_divergence_from_the_reference_is_k3_over_the_response_tokens() -> None:
    parts = reference_statistics(rows([math.log(0.5), math.log(0.2)]), rows([math.log(0.25), math.log(0.2)]))
    assert finish(merge(parts, parts))["policy/kl_ref"] == pytest.approx((0.5 - 1 + math.log(2)) / 2)
