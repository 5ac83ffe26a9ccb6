"""The head in chunks against plain float64, both ways, every loss that is a sum over tokens, and its memory."""

from functools import partial

import pytest
import torch
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.losses import cispo_loss, clipped_policy_loss, kl_penalty, reinforce_loss
from dapo_lit.objective.tokens import NOTHING, Statistics
from dapo_lit.policy import head
from dapo_lit.policy.head import Head, scores, token_loss

TOKENS, SIZE, VOCABULARY = 60, 16, 97
LOSSES = {
    "clip": partial(losses_of, clipped_policy_loss, clip_low=0.2, clip_high=0.28),
    "dual clip": partial(losses_of, clipped_policy_loss, clip_low=0.2, clip_high=0.2, clip_dual=3.0),
    "reinforce": partial(losses_of, reinforce_loss),
    "cispo": partial(losses_of, cispo_loss, clip_low=1.0, clip_high=0.28),
    "clip and KL": lambda new, old, a: (
        losses_of(clipped_policy_loss, new, old, a, clip_low=0.2, clip_high=0.28)
        + 0.1 * kl_penalty(new, old - 0.3, "k3")
    ),
}


class Case:
    """Random hidden states, a head, and tokens with old log-probs near the new ones."""

    def __init__(self, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(TOKENS, SIZE, generator=draw, dtype=torch.float64).to(dtype)
        self.weight = (torch.randn(VOCABULARY, SIZE, generator=draw, dtype=torch.float64) * 0.7).to(dtype)
        self.targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=draw)
        self.advantages = torch.randn(TOKENS, generator=draw)
        self.weights = torch.rand(TOKENS, generator=draw) * (torch.rand(TOKENS, generator=draw) > 0.2) / TOKENS
        logprobs, _ = self.plain(self.hidden.double(), self.weight.double(), 0.8)
        self.old = (logprobs + 0.3 * torch.randn(TOKENS, generator=draw)).detach()

    def plain(self, hidden: Tensor, weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        log_p = (hidden @ weight.t() / temperature).log_softmax(-1)
        return log_p.gather(-1, self.targets[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)

    def reference(self, loss, entropy_bonus: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In float64: loss, log-probs, gradients of hidden states and head."""
        hidden, weight = (x.double().detach().requires_grad_() for x in (self.hidden, self.weight))
        logprobs, entropy = self.plain(hidden, weight, 0.8)
        tokens = loss(logprobs, self.old.double(), self.advantages.double()) - entropy_bonus * entropy
        total = (tokens * self.weights.double()).sum()
        return total.detach(), logprobs.detach(), *torch.autograd.grad(total, (hidden, weight))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 7 tokens: nine of them, the last one shorter."""
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 7)


@pytest.mark.parametrize("name", LOSSES)
def test_both_ways_agree_with_float64_for_every_loss_of_tokens(name):
    case, loss = Case(torch.float32), LOSSES[name]
    total, logprobs, of_hidden, of_weight = case.reference(loss)
    assert of_weight.norm() > 0
    weights, old = case.weights, case.old.float()

    hidden, weight = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
    in_forward, found, entropy, _ = token_loss(
        hidden,
        Head(weight),
        case.targets,
        lambda new, _, s: (loss(new, old[s], case.advantages[s]) * weights[s], NOTHING),
        temperature=0.8,
    )
    in_forward.backward()
    torch.testing.assert_close(in_forward.double(), total, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.double(), logprobs, rtol=0, atol=5e-6)
    torch.testing.assert_close(entropy, case.plain(case.hidden, case.weight, 0.8)[1], rtol=0, atol=5e-6)
    assert relative(hidden.grad, of_hidden) < 2e-6
    assert relative(weight.grad, of_weight) < 2e-6

    again_h, again_w = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
    scored, _ = scores(again_h, Head(again_w), case.targets, temperature=0.8)
    (loss(scored, old, case.advantages) * weights).sum().backward()
    assert relative(again_h.grad, of_hidden) < 2e-6
    assert relative(again_w.grad, of_weight) < 2e-6


def test_no_tensor_except_weights_and_hidden_states_is_larger_than_a_chunk(monkeypatch):
    tokens, vocabulary, size = 2048, 2000, 8
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 16)
    hidden, weight = torch.randn(tokens, size, requires_grad=True), torch.randn(vocabulary, size, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss, *_ = token_loss(
            hidden, Head(weight), targets, lambda new, _, s: (-new / tokens, NOTHING), temperature=1.0
        )
        loss.backward()
    held, peak = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    dense = 3 * 4 * tokens * vocabulary
    gradients = 2 * 4 * size * (tokens + vocabulary)  # made in the forward pass, and scaled in the backward pass
    assert 0 < peak - gradients < dense / 20


@pytest.mark.parametrize("fp32", [False, True])
def test_a_bfloat16_head_has_float32_log_probs_only_where_asked_for(fp32):
    case = Case(torch.bfloat16)
    _, expected, *gradients = case.reference(LOSSES["reinforce"])
    tensors = [x.clone().requires_grad_() for x in (case.hidden, case.weight)]

    def loss(logprobs: Tensor, entropy: Tensor, chunk: slice) -> tuple[Tensor, Statistics]:
        return losses_of(reinforce_loss, logprobs, case.old[chunk], case.advantages[chunk]) * case.weights[
            chunk
        ], NOTHING

    total, logprobs, *_ = token_loss(tensors[0], Head(tensors[1]), case.targets, loss, temperature=0.8, fp32=fp32)
    worst = float((logprobs.double() - expected).abs().max())
    assert worst < 1e-5 if fp32 else 1e-3 < worst < 0.1
    for found, gradient in zip(torch.autograd.grad(total, tensors), gradients, strict=True):
        assert found.dtype == torch.bfloat16
        assert relative(found, gradient) < 0.01


def test_with_a_vocabulary_of_49_152_the_log_probs_are_within_5e_6_of_float64():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = 3 * torch.randn(32, 64, generator=generator) / 8, torch.randn(49_152, 64, generator=generator)
    targets = torch.randint(49_152, (32,), generator=generator)
    _, logprobs, *_ = token_loss(
        hidden, Head(weight), targets, lambda found, _, part: (-found, NOTHING), temperature=1.0
    )
    expected = torch.log_softmax(hidden.double() @ weight.double().t(), -1)[torch.arange(32), targets]
    # log_softmax, which adds one after the other on the CPU, is 8e-6 off.
    assert (logprobs.double() - expected).abs().max() < 5e-6


FORMS = {
    "a scale": (False, 0.25, None),
    "a soft cap": (False, 1.0, 2.5),
    "a bias": (True, 1.0, None),
    "all three": (True, 0.5, 1.5),
}


def test_logits_are_the_hand_worked_ones():
    one = Head(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([1.0, -2.0]), scale=0.5, softcap=3.0)
    # W h = (2, 12); with the bias (3, 10); scaled (1.5, 5); capped (3 tanh 0.5, 3 tanh 5/3).
    logits = torch.tensor([1.3863515, 2.7933288])
    torch.testing.assert_close(one.logits(torch.tensor([[1.0, 3.0]])), logits[None], rtol=0, atol=1e-6)
    logprobs, _ = scores(torch.tensor([[1.0, 3.0]]), one, torch.tensor([0]), temperature=2.0)
    # log softmax of (0.6931758, 1.3966644) at 0: -log(1 + e^0.7034886)
    torch.testing.assert_close(logprobs, torch.tensor([-1.105518]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_bias_a_scale_and_a_soft_cap_have_the_log_probs_and_gradients_of_float64(form):
    has_bias, scale, softcap = FORMS[form]
    case = Case(torch.float32)
    bias = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3)) if has_bias else None
    slopes = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def leaves(dtype: torch.dtype) -> list[Tensor]:
        tensors = [case.hidden, case.weight] + ([] if bias is None else [bias])
        return [x.to(dtype, copy=True).requires_grad_() for x in tensors]

    def total(logprobs: Tensor, entropy: Tensor) -> Tensor:
        return (logprobs * slopes[0].to(logprobs.dtype) + entropy * slopes[1].to(logprobs.dtype)).sum()

    exact = leaves(torch.float64)
    logits = exact[0] @ exact[1].t() + (exact[2] if has_bias else 0.0)
    logits = logits * scale if softcap is None else softcap * torch.tanh(logits * scale / softcap)
    log_p = (logits / 0.8).log_softmax(-1)
    expected = log_p.gather(-1, case.targets[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)
    gradients = torch.autograd.grad(total(*expected), exact, retain_graph=True)

    found = leaves(torch.float32)
    with_form = Head(found[1], found[2] if has_bias else None, scale, softcap)
    scored = scores(found[0], with_form, case.targets, temperature=0.8)
    for ours, theirs in zip(scored, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=5e-6)
    for ours, theirs in zip(torch.autograd.grad(total(*scored), found), gradients, strict=True):
        assert relative(ours, theirs) < 3e-6

    in_forward, *_ = token_loss(
        found[0], with_form, case.targets, lambda new, _, s: (new * slopes[0, s].float(), NOTHING), temperature=0.8
    )
    gradients = torch.autograd.grad((expected[0] * slopes[0]).sum(), exact)
    for ours, theirs in zip(torch.autograd.grad(in_forward, found), gradients, strict=True):
        assert relative(ours, theirs) < 3e-6
    torch.testing.assert_close(with_form.logits(found[0]).double(), logits, rtol=0, atol=1e-5)


def test_fewer_tokens_than_a_chunk_give_the_same_bits_for_any_chunk_size(monkeypatch):
    case, found = Case(torch.float32), []
    for rows in (TOKENS, 256):
        monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device, rows=rows: rows)
        hidden = case.hidden.clone().requires_grad_()
        loss, logprobs, *_ = token_loss(
            hidden, Head(case.weight), case.targets, lambda new, _, s: (-new, NOTHING), temperature=0.8
        )
        found.append((logprobs, *torch.autograd.grad(loss, hidden)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
