"""Compiled layers and head: the numbers of the eager ones, and one compilation for all layers, lengths and layouts.

`make test` traces the layers of one kind; `make sweeps` generates code for this CPU too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from compiling import BACKENDS, WHOLE, compiling
from test_narrow import IDS, tiny
from torch import Tensor
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from dapo_lit.policy.attention import NAME, AttentionInterface, layout, packed_attention, packed_hidden
from dapo_lit.policy.head import Head, HeadPass
from dapo_lit.policy.lora import add_adapters, init_adapters, is_adapter
from dapo_lit.policy.sharding import shard
from dapo_lit.policy.wrap import decoder_layers, run, wrap_layers


@dataclass(frozen=True)
class Wrap:
    """What is around the layers besides their compilation."""

    compute_in: torch.dtype | None = None
    recomputes: bool = False
    shards: bool = False
    """By FSDP2, over one rank."""
    adapters: bool = False

    def model(self, mesh: DeviceMesh, compiles: bool) -> PreTrainedModel:
        model, draw = tiny("qwen2"), torch.Generator().manual_seed(1)
        if self.adapters:
            add_adapters(model, rank=2, alpha=4.0)
            init_adapters(model, 0)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if is_adapter(name):
                        parameter += 0.1 * torch.randn(parameter.shape, generator=draw)  # B is 0 at first
        narrow = None if self.shards else self.compute_in
        wrap_layers(model, compiles=compiles, compute_in=narrow, recomputes=self.recomputes)
        if self.shards:
            shard(model, mesh, dtype=self.compute_in)
        return model


WRAPS = {
    "plain": Wrap(),
    "recomputed": Wrap(recomputes=True),
    "in 16 bits": Wrap(torch.bfloat16),
    "in 16 bits, recomputed": Wrap(torch.bfloat16, recomputes=True),
    "sharded": Wrap(shards=True),
    "sharded, in 16 bits, recomputed": Wrap(torch.bfloat16, recomputes=True, shards=True),
    "adapters": Wrap(adapters=True),
    "adapters, in 16 bits, recomputed": Wrap(torch.bfloat16, recomputes=True, adapters=True),
    "adapters, sharded": Wrap(shards=True, adapters=True),
}
LAYOUTS: list[tuple[list[int], list[int] | None]] = [
    ([5, 7], None), ([3, 1, 8], None), ([4, 3, 5], [-1, 0, 0]), ([12], None), ([2] * 6, None), ([4, 3], None),
    ([2], None),
]  # fmt: skip


@pytest.fixture(params=BACKENDS)
def compiler(request) -> Iterator[None]:
    with compiling(request.param):
        yield
    AttentionInterface.register(NAME, packed_attention)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def trained(model: PreTrainedModel, lengths: list[int], prompts: list[int] | None, compiles: bool) -> list[Tensor]:
    """Loss and gradients of the sum of minus the log-probs of all tokens but the first."""

    def loss_of(model: PreTrainedModel) -> Tensor:
        ids = IDS[: sum(lengths)]
        hidden = packed_hidden(model, ids, layout(lengths, prompts))[:-1]
        head, loss = HeadPass(hidden, Head.of(model), ids[1:], temperature=0.7, compiles=compiles), torch.zeros(())
        for chunk in head.chunks():
            part = -chunk.logprobs.sum()
            chunk.backward(part)
            loss = loss + part.detach()
        return head.with_gradient(loss)

    model.zero_grad()
    loss = run(model, loss_of)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *(g.full_tensor() if isinstance(g, DTensor) else g for g in gradients)]


@pytest.mark.parametrize("wrap", WRAPS if WHOLE else ["recomputed", "in 16 bits"])
def test_compiled_layers_and_head_have_the_eager_numbers_for_every_layout_with_one_compilation(compiler, mesh, wrap):
    eager, compiled = (WRAPS[wrap].model(mesh, compiles) for compiles in (False, True))
    graphs = []
    for lengths, prompts in LAYOUTS:
        expected, found = (trained(m, lengths, prompts, c) for m, c in ((eager, False), (compiled, True)))
        # Fused code keeps wider numbers between operations, which 16 bits show.
        tolerance = 2e-2 if WRAPS[wrap].compute_in else 1e-5
        for theirs, ours in zip(expected, found, strict=True):
            # The last layout has one target, whose queries and keys have a gradient of rounding only.
            assert float((ours - theirs).norm()) <= tolerance * float(theirs.norm()) + 1e-6
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 2  # before and after the attention, and the head
    assert graphs == [graphs[0]] * len(LAYOUTS)


@pytest.mark.parametrize(("family", "norm"), [("qwen2", "model.norm"), ("gpt2", "transformer.ln_f")])
def test_the_layers_and_the_norm_after_them_are_compiled(compiler, family, norm):
    model = tiny(family)
    wrap_layers(model, compiles=True)
    replaced = [name for name, module in model.named_modules() if "forward" in vars(module)]
    layers = [name for name, module in model.named_modules() if module in set(decoder_layers(model))]
    assert replaced == [*layers, norm]
