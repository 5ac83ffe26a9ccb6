"""The diagnostics: definitions by hand, against a slow loop, and their sums over any split."""

import math

import pytest
import torch
from flat import tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_lit.objective.diagnostics import finish, gradient_noise, mismatch_statistics, reference_statistics
from dapo_lit.objective.losses import clipped_policy_loss
from dapo_lit.objective.tokens import NOTHING, Bounds, Statistics, Tokens, merge, token_statistics

BOUNDS = Bounds(0.2, 0.28, 1.5)
EMPTY = finish(NOTHING)


def test_mismatch_by_hand() -> None:
    trainer, engine = tensor(0.5, 0.3, math.nan).log(), tensor(0.25, 0.35, math.nan).log()
    metrics = finish(mismatch_statistics(trainer, engine, torch.tensor([True, True, False])))
    ratio = [2.0, 0.3 / 0.35]
    assert metrics["mismatch/kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratio) / 2)
    assert metrics["mismatch/prob_diff_max"] == pytest.approx(0.25)


def test_bfloat16_inputs_are_summed_at_full_precision() -> None:
    # The sum of 4,097 entropies of 1.0 is 4,096 in bfloat16.
    ones = torch.ones(4097, dtype=torch.bfloat16)
    metrics = finish(token_statistics(Tokens(-ones, -ones, ones, ones, 4097 * ones.long()), BOUNDS))
    assert metrics["policy/entropy"] == 1.0
    assert metrics["policy/prob_mean"] == pytest.approx(math.exp(-1))


@st.composite
def batches(draw: st.DrawFn) -> Tokens:
    """The tokens of up to six completions."""
    lengths = torch.tensor(draw(st.lists(st.integers(0, 5), max_size=6)), dtype=torch.int64)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    old = -torch.rand(int(lengths.sum()), generator=generator, dtype=torch.float64) * 3 - 0.01
    new = old + 0.4 * torch.randn(old.shape, generator=generator, dtype=torch.float64)
    entropy = torch.rand(old.shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(lengths.shape, generator=generator, dtype=torch.float64)
    return Tokens(new, old, advantages.repeat_interleave(lengths), entropy, lengths.repeat_interleave(lengths))


def statistics_of(tokens: Tokens, part: slice = slice(None)) -> Statistics:
    fields = (tokens.logprobs, tokens.old_logprobs, tokens.advantages, tokens.entropy, tokens.completion_tokens)
    new, old, *others = (field[part] for field in fields if field is not None)
    policy = token_statistics(Tokens(new, old, *others), BOUNDS)
    return merge(policy, mismatch_statistics(new, old, torch.ones_like(new, dtype=torch.bool)))


def given_values(metrics: dict[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if value is not None}


@settings(max_examples=40, deadline=None)
@given(batches())
def test_metrics_equal_a_slow_loop(batch: Tokens) -> None:
    assert batch.entropy is not None
    assert batch.completion_tokens is not None
    fields = (batch.logprobs, batch.old_logprobs, batch.advantages, batch.entropy, batch.completion_tokens)
    rows = [
        (math.exp(new - old), math.exp(old), math.exp(new), a, entropy, size)
        for new, old, a, entropy, size in zip(*(x.tolist() for x in fields), strict=True)
    ]
    metrics = finish(statistics_of(batch))
    if not rows:
        assert metrics == EMPTY == dict.fromkeys(EMPTY)
        return
    up = [p for r, p, _, a, *_ in rows if a > 0 and r > 1.28]
    k3 = sum(r - 1 - math.log(r) for r, *_ in rows) / len(rows)
    expected = {
        "clip/low_frac": sum(a < 0 and r < 0.8 for r, _, _, a, *_ in rows) / len(rows),
        "clip/high_frac": len(up) / len(rows),
        "clip/symmetric_high_frac": sum(a > 0 and r > 1.2 for r, _, _, a, *_ in rows) / len(rows),
        "clip/dual_frac": sum(a < 0 and r > 1.5 for r, _, _, a, *_ in rows) / len(rows),
        "policy/kl_old": k3,
        "policy/ratio_max": max(r for r, *_ in rows),
        "policy/prob_mean": sum(p for _, p, *_ in rows) / len(rows),
        "policy/entropy": sum(e for *_, e, _ in rows) / len(rows),
        "policy/entropy_seq_mean": sum(e / size for *_, e, size in rows) / sum(1 / size for *_, size in rows),
        "mismatch/kl": k3,
        "mismatch/prob_diff_max": max(abs(p - q) for _, p, q, *_ in rows),
    }
    of_last_epoch = ("clip/low_frac", "clip/high_frac", "clip/symmetric_high_frac")
    expected |= {f"{key}_last_epoch": expected[key] for key in of_last_epoch}
    if up:
        expected |= {"clip/high_prob_mean": sum(up) / len(up), "clip/high_prob_max": max(up)}
    assert given_values(metrics) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(batches(), st.integers(0, 20))
def test_tokens_that_are_split_anywhere_add_up_to_the_same_metrics(batch: Tokens, cut: int) -> None:
    parts = [statistics_of(batch, part) for part in (slice(cut), slice(cut, None))]
    assert given_values(finish(merge(*parts))) == pytest.approx(given_values(finish(statistics_of(batch))))


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([torch.float32, torch.float64]))
def test_the_clip_shares_count_exactly_the_tokens_that_the_loss_gives_no_gradient(
    batch: Tokens, dtype: torch.dtype
) -> None:
    new, old, advantages = (x.to(dtype) for x in (batch.logprobs, batch.old_logprobs, batch.advantages))
    losses, (sums, _) = clipped_policy_loss(Tokens(new.requires_grad_(), old, advantages), BOUNDS)
    (gradient,) = torch.autograd.grad(losses.sum(), new)
    clipped = sums["clip_low"] + sums["clip_high"] + sums["clip_dual"]
    assert clipped.item() == (gradient == 0).sum().item()


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


@pytest.mark.parametrize(
    ("squares", "squared_sum", "num_updates", "noise"),
    [
        # Equal gradients of norm 3, four times: no noise. Rounding must not make it negative.
        (4 * 9.0, (4 * 3.0) ** 2, 4, 0.0),
        (4 * 9.0 - 1e-12, (4 * 3.0) ** 2, 4, 0.0),
        # One update or a vanishing sum has none.
        (0.0, 0.0, 0, None),
        (4.0, 4.0, 1, None),
        (2.0, 0.0, 2, None),
    ],
)
def test_gradient_noise_by_hand(squares: float, squared_sum: float, num_updates: int, noise: float | None) -> None:
    assert gradient_noise(squares, squared_sum, num_updates) == noise


def test_the_divergence_from_the_reference_is_k3_over_the_response_tokens() -> None:
    parts = reference_statistics(tensor(0.5, 0.2).log(), tensor(0.25, 0.2).log())
    assert finish(merge(parts, parts))["policy/kl_ref"] == pytest.approx((0.5 - 1 + math.log(2)) / 2)
