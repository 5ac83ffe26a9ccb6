"""The head of a GPU: products of 16-bit matrices whose float32 sums are not rounded, with torch's own overloads."""

import pytest
import torch
from test_head import LOSSES, TOKENS, Case, relative, token_loss

from dapo_lit.policy import head
from dapo_lit.policy.head import scores


@pytest.fixture(scope="module")
def products():
    """`mm` and `addmm` with `out_dtype`, which torch has on GPUs only, on the CPU; their names as they are called."""
    calls: list[str] = []
    library = torch.library.Library("aten", "IMPL")

    def mm(a, b, out_dtype):
        calls.append("mm")
        assert a.dtype == b.dtype == torch.bfloat16
        return a.to(out_dtype) @ b.to(out_dtype)

    def addmm(total, a, b, out_dtype, *, beta=1, alpha=1, out):
        calls.append("addmm")
        assert total.dtype == out_dtype == torch.float32
        assert out is total  # in place: no second tensor as large as the head
        return out.copy_(beta * total + alpha * (a.to(out_dtype) @ b.to(out_dtype)))

    library.impl("mm.dtype", mm, "CPU")
    library.impl("addmm.dtype_out", addmm, "CPU")
    yield calls
    library._destroy()


def test_log_probs_and_gradients_of_bf16_weights_lose_nothing_to_rounded_logits(products, monkeypatch):
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary, device: 7)
    monkeypatch.setattr(head, "has_wide_products", lambda tensor: tensor.dtype == torch.bfloat16)
    case, loss = Case(torch.bfloat16), LOSSES["clip"]
    _, logprobs, _, *gradients = case.reference(loss)
    leaves = case.leaves()
    products.clear()
    total, found, *_ = token_loss(leaves[0], case.head(leaves), case.targets, case.weighted(loss), temperature=0.8)
    of_leaves = torch.autograd.grad(total, leaves)
    chunks = -(-TOKENS // 7)
    assert products == ["mm", "addmm"] * chunks  # logits, gradient of the head; that of hidden states is bf16
    torch.testing.assert_close(found.double(), logprobs, rtol=0, atol=5e-6)  # with rounded logits: 1e-2
    for ours, theirs in zip(of_leaves, gradients, strict=True):
        assert relative(ours, theirs) < 5e-3  # bf16 has 8 bits
    again = scores(leaves[0], case.head(leaves), case.targets, temperature=0.8)[0]
    torch.testing.assert_close(again, found, rtol=0, atol=0)
