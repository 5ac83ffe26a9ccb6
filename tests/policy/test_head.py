"""The head in chunks against plain float64, both ways, every loss that is a sum over tokens, and its memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from plain_losses import losses_of
from torch import Tensor

from dapo_lit.objective.losses import cispo_loss, clipped_policy_loss, kl_penalty, reinforce_loss
from dapo_lit.policy import head
from dapo_lit.policy.head import Head, HeadPass, scores

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


FORMS = {
    "plain": (False, 1.0, None),
    "a scale": (False, 0.25, None),
    "a soft cap": (False, 1.0, 2.5),
    "a bias": (True, 1.0, None),
    "all three": (True, 0.5, 1.5),
}
"""Of the logits: a bias, the scale, the soft cap."""


class Case:
    """Random hidden states, a head, and tokens with old log-probs near the new ones."""

    def __init__(self, dtype: torch.dtype, form: str = "plain") -> None:
        has_bias, self.scale, self.softcap = FORMS[form]
        draw = torch.Generator().manual_seed(0)
        hidden = torch.randn(TOKENS, SIZE, generator=draw, dtype=torch.float64)
        weight = torch.randn(VOCABULARY, SIZE, generator=draw, dtype=torch.float64) * 0.7
        bias = torch.randn(VOCABULARY, generator=draw)
        self.tensors = [x.to(dtype) for x in (hidden, weight, bias)[: 2 + has_bias]]
        self.targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=draw)
        self.advantages = torch.randn(TOKENS, generator=draw)
        self.weights = torch.rand(TOKENS, generator=draw) * (torch.rand(TOKENS, generator=draw) > 0.2) / TOKENS
        logprobs, _ = self.plain([x.double() for x in self.tensors])
        self.old = logprobs + 0.3 * torch.randn(TOKENS, generator=draw)

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        return [x.to(dtype or x.dtype, copy=True).requires_grad_() for x in self.tensors]

    def head(self, tensors: list[Tensor]) -> Head:
        return Head(tensors[1], tensors[2] if len(tensors) > 2 else None, self.scale, self.softcap)

    def plain(self, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies at temperature 0.8."""
        hidden, weight, *bias = tensors
        logits = (hidden @ weight.t() + sum(bias)) * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        log_p = (logits / 0.8).log_softmax(-1)
        return log_p.gather(-1, self.targets[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)

    def reference(self, loss, of_entropy: float = 0.0) -> tuple[Tensor, ...]:
        """In float64: loss, log-probs, entropies, gradients of hidden states, head and bias."""
        tensors = self.leaves(torch.float64)
        logprobs, entropy = self.plain(tensors)
        tokens = loss(logprobs, self.old, self.advantages.double()) + of_entropy * entropy
        total = (tokens * self.weights.double()).sum()
        return total.detach(), logprobs.detach(), entropy.detach(), *torch.autograd.grad(total, tensors)

    def weighted(self, loss, of_entropy: float = 0.0) -> "LossOfChunk":
        old = self.old.float()
        return lambda new, entropy, s: (loss(new, old[s], self.advantages[s]) + of_entropy * entropy) * self.weights[s]


LossOfChunk = Callable[[Tensor, Tensor, slice], Tensor]
"""(log-probs [c], entropies [c], their places) -> the loss of each token [c]."""


def token_loss(
    hidden: Tensor, head: Head, targets: Tensor, loss: LossOfChunk, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of a loss over tokens, with gradient; log-probs and entropies, without."""
    way = HeadPass(hidden, head, targets, temperature=options.pop("temperature"), **options)
    total, logprobs, entropies = torch.zeros((), dtype=torch.float64), [], []
    for chunk in way.chunks():
        part = loss(chunk.logprobs, chunk.entropy, chunk.tokens).sum()
        chunk.backward(part)
        total += part.detach()
        logprobs.append(chunk.logprobs.detach())
        entropies.append(chunk.entropy.detach())
    return way.with_gradient(total), torch.cat(logprobs), torch.cat(entropies)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 7 tokens: nine of them, the last one shorter."""
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 7)


CASES = [("plain", name) for name in LOSSES] + [(form, "clip") for form in FORMS if form != "plain"]


@pytest.mark.parametrize(("form", "name"), CASES)
def test_both_ways_agree_with_float64_for_every_loss_of_tokens_and_every_form_of_head(form, name):
    case, loss = Case(torch.float32, form), LOSSES[name]
    total, logprobs, entropy, *gradients = case.reference(loss)
    leaves = case.leaves()
    in_forward, *found = token_loss(leaves[0], case.head(leaves), case.targets, case.weighted(loss), temperature=0.8)
    torch.testing.assert_close(in_forward.double(), total, rtol=1e-5, atol=1e-7)
    for ours, theirs in zip(found, (logprobs, entropy), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=5e-6)
    for ours, theirs in zip(torch.autograd.grad(in_forward, leaves), gradients, strict=True):
        assert relative(ours, theirs) < 3e-6

    scored, entropies = scores(leaves[0], case.head(leaves), case.targets, temperature=0.8)
    torch.testing.assert_close(entropies.double(), entropy, rtol=0, atol=5e-6)
    tokens = loss(scored, case.old.float(), case.advantages)
    for ours, theirs in zip(torch.autograd.grad((tokens * case.weights).sum(), leaves), gradients, strict=True):
        assert relative(ours, theirs) < 3e-6

    total, _, _, *gradients = case.reference(loss, of_entropy=0.5)
    weighted = case.weighted(loss, of_entropy=0.5)
    in_forward, *_ = token_loss(
        leaves[0], case.head(leaves), case.targets, weighted, temperature=0.8, entropy_gradient=True
    )
    torch.testing.assert_close(in_forward.double(), total, rtol=1e-5, atol=1e-7)
    for ours, theirs in zip(torch.autograd.grad(in_forward, leaves), gradients, strict=True):
        assert relative(ours, theirs) < 3e-6


def test_no_tensor_except_weights_and_hidden_states_is_larger_than_a_chunk(monkeypatch):
    tokens, vocabulary, size = 2048, 2000, 8
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 16)
    hidden, weight = torch.randn(tokens, size, requires_grad=True), torch.randn(vocabulary, size, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss, *_ = token_loss(hidden, Head(weight), targets, lambda new, _, s: -new / tokens, temperature=1.0)
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
    case, loss = Case(torch.bfloat16), LOSSES["reinforce"]
    _, expected, _, *gradients = case.reference(loss)
    leaves = case.leaves()
    total, logprobs, *_ = token_loss(
        leaves[0], case.head(leaves), case.targets, case.weighted(loss), temperature=0.8, fp32=fp32
    )
    worst = float((logprobs.double() - expected).abs().max())
    assert worst < 1e-5 if fp32 else 1e-3 < worst < 0.1
    for found, gradient in zip(torch.autograd.grad(total, leaves), gradients, strict=True):
        assert found.dtype == torch.bfloat16
        assert relative(found, gradient) < 0.01


def test_with_a_vocabulary_of_49_152_the_log_probs_are_within_5e_6_of_float64():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = 3 * torch.randn(32, 64, generator=generator) / 8, torch.randn(49_152, 64, generator=generator)
    targets = torch.randint(49_152, (32,), generator=generator)
    _, logprobs, *_ = token_loss(hidden, Head(weight), targets, lambda found, _, part: -found, temperature=1.0)
    expected = torch.log_softmax(hidden.double() @ weight.double().t(), -1)[torch.arange(32), targets]
    # log_softmax, which adds one after the other on the CPU, is 8e-6 off.
    assert (logprobs.double() - expected).abs().max() < 5e-6


def test_logits_are_the_hand_worked_ones():
    one = Head(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([1.0, -2.0]), scale=0.5, softcap=3.0)
    # W h = (2, 12); with the bias (3, 10); scaled (1.5, 5); capped (3 tanh 0.5, 3 tanh 5/3).
    logits = torch.tensor([1.3863515, 2.7933288])
    torch.testing.assert_close(one.logits(torch.tensor([[1.0, 3.0]])), logits[None], rtol=0, atol=1e-6)
    logprobs, _ = scores(torch.tensor([[1.0, 3.0]]), one, torch.tensor([0]), temperature=2.0)
    # log softmax of (0.6931758, 1.3966644) at 0: -log(1 + e^0.7034886)
    torch.testing.assert_close(logprobs, torch.tensor([-1.105518]), rtol=0, atol=2e-6)


def test_fewer_tokens_than_a_chunk_give_the_same_bits_for_any_chunk_size(monkeypatch):
    case, found = Case(torch.float32), []
    for rows in (TOKENS, 256):
        monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device, rows=rows: rows)
        leaves = case.leaves()
        loss, logprobs, *_ = token_loss(
            leaves[0], case.head(leaves), case.targets, case.weighted(LOSSES["clip"]), temperature=0.8
        )
        found.append((logprobs, *torch.autograd.grad(loss, leaves)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
