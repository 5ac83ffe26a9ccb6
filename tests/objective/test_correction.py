"""The corrections by hand in float64, against one another, and where there is nothing to correct."""

import re
from inspect import signature
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.correction import CORRECTIONS, icepop_weights, sequence_mask_weights, truncated_weights
from dapo_lit.objective.diagnostics import correction_statistics, finish
from dapo_lit.objective.losses import clipped_policy_loss
from dapo_lit.objective.tokens import merge

PAGE = Path(__file__).parents[2] / "docs" / "mismatch.md"
# pi_old, mu and their ratio of five tokens in three completions.
OLD = torch.tensor([0.6, 0.2, 0.9, 0.01, 0.5], dtype=torch.float64).log()
MU = torch.tensor([0.4, 0.5, 0.3, 0.5, 0.5], dtype=torch.float64).log()
COMPLETIONS = torch.tensor([7, 7, 2, 2, 5])


def test_truncated_weights_are_the_ratio_up_to_the_cap() -> None:
    assert truncated_weights(OLD, MU, cap=2.0).tolist() == pytest.approx([1.5, 0.4, 2.0, 0.02, 1.0], rel=1e-14)
    assert truncated_weights(OLD, MU, cap=1.0).tolist() == pytest.approx([1.0, 0.4, 1.0, 0.02, 1.0], rel=1e-14)


def test_icepop_drops_tokens_on_both_sides_of_the_band_and_weighs_the_others_by_the_ratio() -> None:
    assert icepop_weights(OLD, MU, low=0.5, high=5.0).tolist() == pytest.approx([1.5, 0, 3.0, 0, 1.0], rel=1e-14)
    assert icepop_weights(OLD, MU, low=0.3, high=2.0).tolist() == pytest.approx([1.5, 0.4, 0, 0, 1.0], rel=1e-14)


def test_the_sequence_mask_goes_by_the_product_over_a_completion() -> None:
    product = [1.5 * 0.4] * 2 + [3.0 * 0.02] * 2 + [1.0]
    assert sequence_mask_weights(OLD, MU, COMPLETIONS, low=0.0, high=2.0).tolist() == pytest.approx(product, rel=1e-14)
    low = sequence_mask_weights(OLD, MU, COMPLETIONS, low=0.5, high=2.0)
    assert low.tolist() == pytest.approx([0.6, 0.6, 0, 0, 1.0], rel=1e-14)
    high = sequence_mask_weights(MU, OLD, COMPLETIONS, low=0.0, high=2.0)  # the inverse ratios
    assert high.tolist() == pytest.approx([1 / 0.6, 1 / 0.6, 0, 0, 1.0], rel=1e-14)


def by_hand(level: str, effect: str, low: float, high: float) -> list[float]:
    """Of the five tokens: ratios 1.5, 0.4 of one completion, 3, 0.02 of another, 1 of a third."""
    rho = {
        "token": [1.5, 0.4, 3.0, 0.02, 1.0], "sequence": [0.6, 0.6, 0.06, 0.06, 1.0],
        "geometric": [0.6**0.5, 0.6**0.5, 0.06**0.5, 0.06**0.5, 1.0],
    }[level]  # fmt: skip
    if effect == "weigh":
        return [min(max(k, low), high) for k in rho]
    return [(1.0 if effect == "mask" else k) if low <= k <= high else 0.0 for k in rho]


FAMILY = {
    "tis": ("token", "weigh"), "mask_tokens": ("token", "mask"), "icepop": ("token", "both"),
    "weigh_sequences": ("sequence", "weigh"), "mask_sequences": ("sequence", "mask"),
    "sequence_mask": ("sequence", "both"), "weigh_geometric": ("geometric", "weigh"),
    "mask_geometric": ("geometric", "mask"), "weigh_and_mask_geometric": ("geometric", "both"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CORRECTIONS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.5, 5.0), (0.7, 1.2)])
def test_each_correction_is_a_weight_a_mask_or_both_by_a_ratio_of_tokens_or_completions(kind, low, high) -> None:
    function, (level, effect) = CORRECTIONS[kind], FAMILY[kind]
    takes = signature(function).parameters
    band = {"low": 0.0 if kind == "tis" else low, "high": high, "cap": high}
    given = {key: value for key, value in band.items() if key in takes}
    weights = function(OLD, MU, *([COMPLETIONS] if "completions" in takes else []), **given)
    assert weights.tolist() == pytest.approx(by_hand(level, effect, band["low"], high), rel=1e-12)


def test_the_page_has_every_correction_with_its_band() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (?:`\[([\d.]+), ([\d.]+)\]`|the same)", PAGE.read_text(), re.M)
    bands = {kind: (float(low), float(high)) for kind, low, high in rows if low}
    assert {kind for kind, *_ in rows} == set(CORRECTIONS)
    for kind, (low, high) in bands.items():
        defaults = {name: p.default for name, p in signature(CORRECTIONS[kind]).parameters.items()}
        assert (defaults.get("low", 0.0), defaults.get("high", defaults.get("cap"))) == (low, high), kind


def every_one(old: Tensor, mu: Tensor, completions: Tensor) -> list[Tensor]:
    return [
        truncated_weights(old, mu, cap=2.0),
        icepop_weights(old, mu, low=0.5, high=5.0),
        sequence_mask_weights(old, mu, completions, low=0.0, high=2.0),
        *(
            function(old, mu, completions)
            for kind, function in CORRECTIONS.items()
            if kind.startswith(("mask", "weigh"))
        ),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@given(st.lists(st.tuples(st.floats(-60, 0), st.integers(0, 3)), min_size=1, max_size=12))
def test_where_engine_and_trainer_agree_loss_and_gradient_are_the_same_bits(dtype, drawn) -> None:
    old = torch.tensor([value for value, _ in drawn], dtype=dtype)
    advantages = torch.linspace(-1, 1, len(drawn), dtype=torch.promote_types(dtype, torch.float32))

    def outcome(weights: Tensor | None) -> tuple[Tensor, Tensor]:
        logprobs = (old.to(advantages.dtype) - 0.1).requires_grad_()
        loss = losses_of(clipped_policy_loss, logprobs, old, advantages, clip_low=0.2, clip_high=0.28)
        loss = (loss if weights is None else loss * weights).sum()
        return loss, torch.autograd.grad(loss, logprobs)[0]

    plain = outcome(None)
    for weights in every_one(old, old.clone(), torch.tensor([place for _, place in drawn])):
        assert torch.equal(weights, torch.ones_like(advantages))
        assert all(torch.equal(a, b) for a, b in zip(plain, outcome(weights), strict=True))


def test_weights_are_finite_and_without_gradient_however_far_the_two_are_apart() -> None:
    old = torch.tensor([-200.0, 0.0]).requires_grad_()
    for weights in every_one(old, torch.tensor([0.0, -200.0]), torch.tensor([0, 1])):
        assert weights.isfinite().all()
        assert not weights.requires_grad


def test_the_metrics_are_the_mean_weight_and_the_share_of_zeros_over_any_split() -> None:
    weights = icepop_weights(OLD, MU, low=0.5, high=5.0)
    for parts in ([weights], weights.split([1, 4]), weights.split(1)):
        statistics = correction_statistics(weights[:0])
        for part in parts:
            statistics = merge(statistics, correction_statistics(part))
        metrics = finish(statistics)
        assert metrics["mismatch/correction_mean"] == pytest.approx((1.5 + 3.0 + 1.0) / 5)
        assert metrics["mismatch/masked_frac"] == pytest.approx(2 / 5)
