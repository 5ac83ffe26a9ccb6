"""The head's compiled arithmetic against float64 and the eager one, and the memory that it takes.

`make test` traces it, and generates code where the bytes are counted; `make sweeps` generates code for all.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from compiling import BACKENDS, compiling
from test_head import FORMS, LOSSES, Case, relative, token_loss
from torch import Tensor

from dapo_lit.policy import head, softmax
from dapo_lit.policy.softmax import Fused, InPlace


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 7 tokens: nine of them, the last one shorter."""
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 7)


@pytest.fixture(params=BACKENDS)
def compiler(request) -> Iterator[None]:
    with compiling(request.param):
        yield


@pytest.fixture
def generates_code() -> Iterator[None]:
    with compiling("inductor"):
        yield


def passed(case: Case, of_entropy: float, compiles: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Loss, log-probs and entropies of the clipped loss; gradients of hidden states, head and bias."""
    leaves = case.leaves()
    total, *found = token_loss(
        leaves[0],
        case.head(leaves),
        case.targets,
        case.weighted(LOSSES["clip"], of_entropy),
        temperature=0.8,
        entropy_gradient=of_entropy > 0,
        compiles=compiles,
    )
    return [total.detach(), *found], list(torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("of_entropy", [0.0, 0.5])
@pytest.mark.parametrize("form", FORMS)
def test_compiled_and_eager_heads_agree_with_float64_for_every_form_with_and_without_entropy(
    compiler, form, of_entropy
):
    case = Case(torch.float32, form)
    total, *expected = case.reference(LOSSES["clip"], of_entropy)
    values, gradients = passed(case, of_entropy, compiles=True)
    theirs_values, theirs_gradients = passed(case, of_entropy, compiles=False)
    torch.testing.assert_close(values[0].double(), total, rtol=1e-5, atol=1e-7)
    for ours, theirs, exact in zip(values[1:], theirs_values[1:], expected[:2], strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=5e-6)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-6)
    for ours, theirs, exact in zip(gradients, theirs_gradients, expected[2:], strict=True):
        assert relative(ours, exact) < 3e-6
        assert relative(ours, theirs.double()) < 3e-6


@pytest.mark.parametrize("form", ["plain", "all three"])
def test_a_compiled_head_in_16_bits_has_the_eager_log_probs_and_a_gradient_apart_by_its_rounding(compiler, form):
    case = Case(torch.bfloat16, form)
    _, *exact = case.reference(LOSSES["clip"], 0.5)
    (_, *ours), our_gradients = passed(case, 0.5, compiles=True)
    (_, *theirs), their_gradients = passed(case, 0.5, compiles=False)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=5e-6)
    for a, b, c in zip(our_gradients, their_gradients, exact[2:], strict=True):
        assert a.dtype == torch.bfloat16
        assert relative(a, b.double()) < 2e-3
        assert relative(a, c) < 0.01


@pytest.mark.parametrize("shift", [0.0, 30_000.0])
def test_logits_far_from_zero_have_the_gradient_of_those_near_it(shift):
    draw = torch.Generator().manual_seed(0)
    # Of quarters, which a float32 of 30,000 still holds.
    logits = (4 * torch.randn(5, 97, generator=draw)).mul(4).round().div(4) + shift
    targets, slopes = torch.randint(97, (5,), generator=draw), torch.randn(2, 5, generator=draw)
    exact = logits.double().requires_grad_()
    log_p = exact.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    loss = log_p.gather(-1, targets[:, None]).squeeze(-1) @ slopes[0].double() + entropy @ slopes[1].double()
    (expected,) = torch.autograd.grad(loss, exact)
    rows = softmax.forward(logits, None, targets, None, 1.0)
    found = softmax.backward(logits.clone(), None, targets, None, 1.0, rows, slopes[0], slopes[1], torch.float32)
    assert relative(found, expected) < 1e-6
    eager = InPlace(logits.clone(), None, targets, None, 1.0, entropy_gradient=True)
    assert relative(eager.backward(slopes[0], slopes[1], torch.float32, with_bias=False)[0], expected) < 1e-6


def test_a_token_of_probability_zero_adds_nothing_to_entropy_and_gradients():
    logits, target, one = torch.tensor([[0.0, 0.0, -torch.inf]]), torch.tensor([0]), torch.ones(1)
    rows = softmax.forward(logits, None, target, None, 1.0)
    torch.testing.assert_close(rows.entropy, torch.tensor([2.0]).log())
    found = softmax.backward(logits.clone(), None, target, None, 1.0, rows, one, one, torch.float32)
    # 1[target] - p, as the entropy of two equal tokens is at its largest.
    expected = torch.tensor([[0.5, -0.5, 0.0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    eager = InPlace(logits.clone(), None, target, None, 1.0, entropy_gradient=True)
    found, _ = eager.backward(one, one, torch.float32, with_bias=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def large(call, least: int) -> list[int]:
    """Sizes of what a call allocates, of at least so many bytes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in events if event.nbytes() >= least]


def test_generated_code_has_the_eager_gradient_and_allocates_nothing_of_the_logits_size_but_one_in_16_bits(
    generates_code,
):
    c, vocabulary, draw = 8, 4096, torch.Generator().manual_seed(0)
    logits, targets = torch.randn(c, vocabulary, generator=draw), torch.randint(vocabulary, (c,), generator=draw)
    slopes, kept, gradients = torch.randn(2, c, generator=draw), list[InPlace | Fused](), list[Tensor]()

    def forward(kind: type[InPlace] | type[Fused], logits: Tensor) -> None:
        kept.append(kind(logits, None, targets, None, 0.7, entropy_gradient=True))

    def backward(dtype: torch.dtype) -> None:
        gradients.append(kept[-1].backward(slopes[0], slopes[1], dtype, with_bias=False)[0])

    for dtype, most in ((torch.float32, 3e-6), (torch.bfloat16, 2e-3)):
        for kind in (InPlace, Fused):
            forward(kind, logits.clone())
            backward(dtype)
        (eager, fused), (expected, found) = kept[-2:], gradients[-2:]
        torch.testing.assert_close(fused.logprobs, eager.logprobs, rtol=0, atol=5e-6)
        torch.testing.assert_close(fused.entropy, eager.entropy, rtol=0, atol=5e-6)
        assert found.dtype == dtype
        assert relative(found, expected.double()) < most
        # At least a byte a logit: no float32, no 16 bits, no mask.
        assert large(partial(forward, Fused, logits.clone()), c * vocabulary) == []
        assert large(partial(backward, dtype), c * vocabulary) == (
            [] if dtype == torch.float32 else [2 * c * vocabulary]
        )
