"""Compiled layers and head: the numbers of the eager ones, and one compilation for all layers, lengths and layouts.

`make test` traces the layers of one kind; `make sweeps` generates code for this CPU too.
"""

import os
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from packaging.version import Version
from test_narrow import IDS, tiny
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import PreTrainedModel

from dapo_lit.policy import softmax
from dapo_lit.policy.attention import NAME, AttentionInterface, layout, packed_attention, packed_hidden
from dapo_lit.policy.head import Head, HeadPass
from dapo_lit.policy.wrap import run, wrap_layers

WHOLE = bool(os.environ.get("DAPO_LIT_MATRIX"))
BACKENDS = ["aot_eager", "inductor"] if WHOLE else ["aot_eager"]
WRAPS = {"plain": {}, "recomputed": {"recomputes": True}, "in 16 bits": {"compute_in": torch.bfloat16}}
LAYOUTS: list[tuple[list[int], list[int] | None]] = [
    ([5, 7], None), ([3, 1, 8], None), ([4, 3, 5], [-1, 0, 0]), ([12], None), ([2] * 6, None)
]  # fmt: skip


@pytest.fixture(params=BACKENDS)
def compiler(request, monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=request.param))
    softmax.compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    yield
    softmax.compiled.cache_clear()
    AttentionInterface.register(NAME, packed_attention)


def trained(model: PreTrainedModel, lengths: list[int], prompts: list[int] | None, compiles: bool) -> list[Tensor]:
    """Loss and gradients of the sum of minus the log-probs of all tokens but the first."""

    def loss_of(model: PreTrainedModel) -> Tensor:
        hidden = packed_hidden(model, IDS, layout(lengths, prompts))[:-1]
        head, loss = HeadPass(hidden, Head.of(model), IDS[1:], temperature=0.7, compiles=compiles), torch.zeros(())
        for chunk in head.chunks():
            part = -chunk.logprobs.sum()
            chunk.backward(part)
            loss = loss + part.detach()
        return head.with_gradient(loss)

    model.zero_grad()
    loss = run(model, loss_of)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPS if WHOLE else ["recomputed"])
def test_compiled_layers_and_head_have_the_eager_numbers_for_every_layout_with_one_compilation(compiler, wrap):
    eager, compiled = tiny("qwen2"), tiny("qwen2")
    wrap_layers(eager, **WRAPS[wrap])
    wrap_layers(compiled, compiles=True, **WRAPS[wrap])
    graphs = []
    for lengths, prompts in LAYOUTS:
        expected, found = (trained(m, lengths, prompts, c) for m, c in ((eager, False), (compiled, True)))
        # Fused code keeps wider numbers between operations, which 16 bits show.
        tolerance = 2e-2 if wrap == "in 16 bits" else 1e-5
        for theirs, ours in zip(expected, found, strict=True):
            assert float((ours - theirs).norm()) <= tolerance * float(theirs.norm())
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 2  # before and after the attention, and the head
    # Older versions read the layout on its way to the attention, and compile again for each number of batches, which
    # only a CPU has; the numbers above are right there too.
    if Version(torch.__version__) >= Version("2.13"):
        assert graphs == [graphs[0]] * len(LAYOUTS)
