"""Low-rank adapters (LoRA, arXiv 2106.09685): y = (W + scale B A) x, where only A and B are trained.

`peft` inserts the adapters. This file adds what training needs: initial values that depend only on seed and name, the
base without adapters as reference policy, merging for engines and exports, and a fingerprint of the base, which must
match when a checkpoint that holds only adapters is loaded.

Left out: adapters on head and embedding, whose weights are read directly (policy/head.py), and dropout, because the
importance ratio must be 1 before the first update.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from dapo_lit.seeds import adapter_seed

NAME = "default"
"""Name of the adapter, part of its tensors' names."""
EDGE = 8
"""Number of values of each base tensor that go into the fingerprint."""


MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The matrices of a layer."""


def add_adapters(model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str] = MATRICES) -> None:
    """Adds adapters to every matrix named in `targets`, in place, and freezes all other parameters.

    Their values are undefined until `init_adapters` is called; the model may be on the meta device. Adapters are always
    float32: updates of bfloat16 numbers with a small learning rate are lost to rounding.
    """
    # Takes a second, and most runs have no use for it.
    from peft import LoraConfig, inject_adapter_in_model

    # By the last part of the name: every layer has a matrix of that name.
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if missing := sorted(set(targets) - found):
        raise ValueError(
            f"policy.lora: the policy has no matrices {', '.join(missing)}; it has {', '.join(sorted(found))}"
        )
    settings = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, bias="none")
    # No memory, no random numbers.
    inject_adapter_in_model(settings, model, adapter_name=NAME, low_cpu_mem_usage=True)
    for layer in _layers(model).values():
        for adapter in (layer.lora_A[NAME], layer.lora_B[NAME]):
            adapter.weight = nn.Parameter(
                torch.empty(adapter.weight.shape, dtype=torch.float32, device=layer.base_layer.weight.device)
            )


def is_adapter(name: str) -> bool:
    """True if a parameter with this name belongs to an adapter."""
    return ".lora_" in name


def has_adapters(model: nn.Module) -> bool:
    return any(is_adapter(name) for name, _ in model.named_parameters())


def base_name(name: str) -> str:
    """The parameter's name in the model without adapters."""
    return name.replace(".base_layer.", ".")


@torch.no_grad()
def init_adapters(model: nn.Module, seed: int) -> None:
    """Initialises A uniformly within ±1 / sqrt(inputs), like peft, and B to zero: training starts at the base.

    Each A has its own generator, keyed by seed and name, so that shards get the same values on any number of ranks.
    """
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            continue
        # The whole matrix on every rank, then its own part: drawing shards would depend on their number.
        whole = torch.zeros(parameter.shape, device="cpu")
        if ".lora_A." in name:
            generator = torch.Generator(device="cpu").manual_seed(adapter_seed(seed, name))
            whole.uniform_(-1.0, 1.0, generator=generator)
            # kaiming_uniform with a = sqrt(5), as in peft and torch.nn.Linear.
            whole /= parameter.shape[1] ** 0.5
        if isinstance(parameter, DTensor):
            local = parameter.to_local()
            whole = whole.to(local.device)
            # src_data_rank=None: every rank has drawn the same values, so that none has to send them.
            cut = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            local.copy_(cut.to_local())
        else:
            parameter.copy_(whole)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Disables the adapters inside the block: the model is the base that training started from."""
    layers = _layers(model).values()
    for layer in layers:
        # Its enable_adapters() would change requires_grad as well.
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def scales(model: nn.Module) -> dict[str, float]:
    """Name of each matrix with an adapter -> the factor of its product B A."""
    return {name: layer.scaling[NAME] for name, layer in _layers(model).items()}


def merged_matrix(matrix: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale B A in the dtype of W, rounded once."""
    # Float32 for the sum: a product that is rounded before it is added loses its small entries.
    return (matrix.float() + scale * (b.float() @ a.float())).to(matrix.dtype)


@torch.no_grad()
def merge(model: PreTrainedModel, adapters: Mapping[str, Tensor], scale: float) -> None:
    """Adds saved adapters (name -> tensor) to the matrices of a model without adapters, in place."""
    parameters = dict(model.named_parameters())
    for name, a in adapters.items():
        matrix, found, _ = name.partition(f".lora_A.{NAME}")
        if found:
            weight = parameters[f"{matrix}.weight"]
            weight.copy_(merged_matrix(weight, a, adapters[f"{matrix}.lora_B.{NAME}.weight"], scale))


def fingerprint(model: nn.Module) -> int:
    """CRC-32 of the first values of every base tensor; of a sharded model, on rank 0 only, and all ranks must call it.

    It detects another base or a base that was trained further, and reads very little.
    """
    value = 0
    for name, parameter in sorted(model.named_parameters()):
        if not is_adapter(name):
            values = parameter.detach()
            if isinstance(values, DTensor):
                # The first shard is the largest. If the others might have some of the first values, the whole tensor is
                # small; by its size, so that all ranks gather the same ones.
                is_small = values.numel() < EDGE * values.device_mesh.size()
                values = values.full_tensor() if is_small else values.to_local()
            first = values.reshape(-1)[:EDGE].float().cpu().numpy().tobytes()
            value = zlib.crc32(f"{base_name(name)}{tuple(parameter.shape)}".encode() + first, value)
    return value


def _layers(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def only_trained(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The trained tensors of a state dict: a checkpoint of adapters leaves out the base, which does not change."""
    # By requires_grad and not by name: a critic's head is trained too.
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name in trained}
