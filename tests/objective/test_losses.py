"""The token loss, the importance ratio and the KL penalties: by hand, against loops, and by their gradients."""

import math

import pytest
import torch
from flat import tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_losses import losses_of

from dapo_lit.objective.losses import KLEstimator, clipped_policy_loss, importance_ratio, kl_penalty
from dapo_lit.objective.tokens import Bounds, clipped_tokens

ratios = st.floats(0.01, 20.0)
bounds = st.floats(0.0, 0.9)


def loss_and_gradient(
    ratio: float, advantage: float, low: float, high: float, dual: float | None = None
) -> tuple[float, float]:
    logprobs, bounds = tensor(math.log(ratio)).requires_grad_(), {"clip_low": low, "clip_high": high, "clip_dual": dual}
    loss = losses_of(clipped_policy_loss, logprobs, tensor(0.0), tensor(advantage), **bounds)
    return loss.item(), torch.autograd.grad(loss.sum(), logprobs)[0].item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_ratio_stays_finite_at_any_distance(dtype: torch.dtype) -> None:
    logprobs = torch.tensor([0.0, -500.0, 0.0], dtype=dtype, requires_grad=True)
    ratio = importance_ratio(logprobs, torch.tensor([-500.0, 0.0, -19.0], dtype=dtype))
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20), math.exp(19)], rel=1e-5)
    ratio.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: -A, and the gradient of REINFORCE
        (1.1, 2.0, -2.2, -2.2),  # between the bounds: -r A
        (1.5, 2.0, -2.56, 0.0),  # above, A > 0: -1.28 A, no reason to rise further
        (0.5, 2.0, -1.0, -1.0),  # below, A > 0: not clipped, it may recover
        (0.5, -2.0, 1.6, 0.0),  # below, A < 0: 0.8 |A|, no reason to fall further
        (1.5, -2.0, 3.0, 3.0),  # above, A < 0: not clipped, it may recover
        (1.25, 1.0, -1.25, -1.25),  # 1.25 is below 1.28: clip-higher lets it rise
    ],
)
def test_each_region_of_the_clip_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert loss_and_gradient(ratio, advantage, 0.2, 0.28) == pytest.approx((loss, gradient))


@settings(max_examples=200, deadline=None)
@given(ratios, st.floats(-3, 3), bounds, bounds, st.none() | st.floats(1.01, 15))
def test_it_equals_the_formula_written_with_floats(
    ratio: float, advantage: float, low: float, high: float, dual: float | None
) -> None:
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    loss, _ = loss_and_gradient(ratio, advantage, low, high, dual)
    assert loss == pytest.approx(-objective, rel=1e-9, abs=1e-12)


def test_a_token_without_advantage_is_past_no_bound() -> None:
    """Its gradient is 0 on either side, so that counting it as clipped would tell of a limit that limits nothing."""
    ratios_of_all = torch.tensor([0.01, 1.0, 100.0])
    past = clipped_tokens(ratios_of_all, torch.zeros(3), Bounds(low=0.2, high=0.28, dual=10.0))
    assert [bound.any().item() for bound in past] == [False, False, False]


def test_bfloat16_log_probs_are_subtracted_in_float32() -> None:
    logprobs, old_logprobs = torch.tensor([-2.015625, -4.0]).bfloat16(), torch.tensor([-2.0, -1.0]).bfloat16()
    advantages = torch.tensor([1.0, -1.0]).bfloat16()
    loss = losses_of(clipped_policy_loss, logprobs, old_logprobs, advantages, clip_low=0.2, clip_high=0.28)
    assert loss.dtype == torch.float32
    # In bfloat16 exp(-0.015625) = 0.98450 rounds to 0.98438.
    torch.testing.assert_close(loss, torch.tensor([-math.exp(-0.015625), 0.8]), atol=1e-6, rtol=0)


def test_kl_estimates_by_hand() -> None:
    # Policy 0.5, reference 0.25: d = log 2.
    logprobs, ref_logprobs = tensor(math.log(0.5)), tensor(math.log(0.25))
    d = math.log(2)
    assert kl_penalty(logprobs, ref_logprobs, "k1").item() == pytest.approx(d)
    assert kl_penalty(logprobs, ref_logprobs, "k2").item() == pytest.approx(d * d / 2)
    assert kl_penalty(logprobs, ref_logprobs, "k3").item() == pytest.approx(0.5 - 1 + d)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradients_of_the_kl_estimates_agree_with_finite_differences(estimator: KLEstimator) -> None:
    ref_logprobs = tensor(-1.0, -2.0, -3.0)
    logprobs = tensor(-1.5, -1.0, -3.2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_penalty(x, ref_logprobs, estimator), logprobs)
    bfloat16 = kl_penalty(logprobs.bfloat16(), ref_logprobs.bfloat16(), estimator)
    assert bfloat16.dtype == torch.float32


def test_over_the_policys_samples_the_estimates_have_the_gradients_that_their_docstring_says() -> None:
    logits = tensor(0.3, -1.0, 0.8).requires_grad_()
    log_p, log_ref = logits.log_softmax(dim=-1), tensor(0.2, 0.3, 0.5).log()
    probs = log_p.detach().exp()
    of_policy, of_reference = (log_p.exp() * (log_p - log_ref)).sum(), (log_ref.exp() * (log_ref - log_p)).sum()
    (exact,) = torch.autograd.grad(of_policy, logits, retain_graph=True)
    (forward,) = torch.autograd.grad(of_reference, logits, retain_graph=True)
    k1, k2, k3 = (
        torch.autograd.grad((probs * kl_penalty(log_p, log_ref, estimator)).sum(), logits, retain_graph=True)[0]
        for estimator in ("k1", "k2", "k3")
    )
    torch.testing.assert_close(k2, exact)
    torch.testing.assert_close(k3, forward)
    assert k1.abs().max() < 1e-12
