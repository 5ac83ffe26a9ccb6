"""Sharding of the policy (FSDP2): one parameter group a layer, one for the head, one for the rest.

Functions of a sharded model are called through `wrap.run`, which gathers the weights before and reshards them after.
Gradients are summed over ranks, not averaged, because the loss is already divided by the token count of all ranks.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from dapo_lit.policy.load import NO_CODE, check_headers, damage, files_of_tensors, opened, read_first
from dapo_lit.policy.lora import base_name, is_adapter, merged_matrix, scales
from dapo_lit.policy.wrap import decoder_layers, gather_in_run


def shard(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    *,
    dtype: torch.dtype | None = None,
    separate_head: bool = True,
) -> None:
    """Shards the parameters over `mesh`, in place. The model may be on the meta device.

    dtype: of weights and activations in forward and backward; gradients are reduced in float32. None: the model's.
    separate_head: an untied head is a group of its own, gathered after the last layer.
    """
    # Reduced in float32: a sum over many ranks in bfloat16 loses small gradients.
    precision = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None, cast_forward_inputs=False
    )
    group: dict[str, Any] = {"mesh": mesh, "mp_policy": precision}
    # A group a layer: one layer is gathered while the one before it computes.
    for layer in decoder_layers(model):
        fully_shard(layer, **group)
    head = model.get_output_embeddings()
    if separate_head and head is not None and not model.config.tie_word_embeddings:
        # A tied head is the embedding, which is in the root's group.
        fully_shard(head, **group)
    fully_shard(model, **group)
    # The loss is divided by the tokens of all ranks (Eq. 12); FSDP2's mean would divide it once more.
    _sum_gradients(model)
    gather_in_run(model)


def shard_value_head(head: nn.Linear, mesh: DeviceMesh) -> None:
    """Shards the head of a value model as a group of its own, in its own dtype (float32)."""
    fully_shard(head, mesh=mesh)
    _sum_gradients(head)


def _sum_gradients(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # By default FSDP2 divides by the number of ranks.
            module.set_gradient_divide_factor(1.0)
            # Else a reduction (PREMUL_SUM) that gloo does not have.
            module.set_force_sum_reduction_for_comms(True)


def empty_model(folder: str | Path, dtype: torch.dtype, *, own: bool = False) -> PreTrainedModel:
    """The model of a local HF folder on the meta device; its buffers, such as rotary frequencies, are real.

    own: as in load_model.
    """
    if not list(Path(folder).glob("*.safetensors")):
        raise FileNotFoundError(
            f"policy.path={folder}: trainer.strategy=fsdp needs safetensors, but the folder has none"
        )
    if not own:
        read_first(Path(folder))
    try:
        config = AutoConfig.from_pretrained(folder, **NO_CODE)
    except Exception as error:  # as in load_model
        raise damage(Path(folder), "model", error) from error
    # Real buffers: they are computed, no file has them, and empty ones would hold what the memory had.
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()  # the context gave each module its own parameter
    if (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    if get_checkpoint_conversion_mapping(model.config.model_type):
        # Mixtures of experts: the files have a matrix for each expert, the model one tensor for all.
        raise OSError(
            f"policy.path={folder}: trainer.strategy=fsdp cannot read the weights of {model.config.model_type}, whose "
            "tensors transformers rearranges while it loads them; use trainer.strategy=single, or a dense model"
        )
    # Before anything is sharded: afterwards a wrong shape is an error of one rank, and the others hang.
    check_headers(Path(folder), {name: tuple(parameter.shape) for name, parameter in model.named_parameters()})
    return model.eval()


@torch.no_grad()
def load_shards(model: PreTrainedModel, folder: str | Path, device: torch.device) -> None:
    """Allocates every shard on `device` and reads its part of the safetensors: no rank holds more than its shards.

    model: a causal language model, or its base model without head. Adapters are left undefined.
    """
    # Collected before to_empty, which replaces them by memory as it is.
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    model.to_empty(device=device)
    for module, name, buffer in buffers:  # to_empty lost their values
        module._buffers[name] = None if buffer is None else buffer.to(device)
    # Every rank opens every file and reads its rows: no rank broadcasts, so none holds the whole model.
    places = files_of_tensors(Path(folder))
    tied = model.config.tie_word_embeddings
    prefix = f"{model.base_model_prefix}." if model.base_model is model else ""
    for full_name, parameter in model.named_parameters():
        name = prefix + base_name(full_name)
        if is_adapter(name):
            continue
        if name not in places:
            if tied and name == "lm_head.weight":
                continue
            raise KeyError(f"{folder}: no tensor {name!r} in the safetensors; they belong to another architecture")
        _read(parameter, places[name], name)


def _read(parameter: Tensor, file: Path, name: str) -> None:
    with opened(file) as tensors:
        if not isinstance(parameter, DTensor):
            parameter.copy_(tensors.get_tensor(name))
        else:
            shape, offset = compute_local_shape_and_global_offset(
                parameter.shape, parameter.device_mesh, parameter.placements
            )
            rows = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
            local = parameter.to_local()
            if local.numel():
                # Only these rows are read from disk.
                local.copy_(tensors.get_slice(name)[rows])


def full_tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Every full parameter with its name in the state dict, group by group, so that no rank holds two groups.

    A collective: all ranks must take all tensors, in this order, and copy each before asking for the next. Adapters are
    merged into their matrices. A tied head is yielded under both names.
    """
    sharded: list[tuple[str, Any]] = [
        (name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)
    ]
    if not sharded:
        # Not named_parameters: the state dict has a tied head under both names, as engines expect.
        yield from merged(model.state_dict().items(), model)
        return
    prefixes = {f"{name}." for name, _ in sharded if name}
    for prefix, module in sharded:
        module.unshard()
        start = f"{prefix}." if prefix else ""
        # A parameter belongs to the innermost group; the root's unshard gathers only its own.
        below = {p for p in prefixes if p.startswith(start) and p != start}
        own = [
            (start + name, parameter.detach())
            # A tied head has two names.
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if not any((start + name).startswith(p) for p in below)
        ]
        whole = [(name, t.full_tensor() if isinstance(t, DTensor) else t) for name, t in own]
        yield from merged(whole, model)
        # Before the next group: two gathered groups at once may not fit.
        module.reshard()


class PolicyTensors:
    """`full_tensors` of a policy, which can be iterated repeatedly."""

    def __init__(self, policy: PreTrainedModel) -> None:
        self.policy = policy

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return full_tensors(self.policy)

    def copied(self, kept: bool) -> list[tuple[str, Tensor]]:
        """The current values in host memory, for an engine that reads them while the policy trains.

        kept: False on a rank that only takes part in gathering them: shapes, with one zero each.
        """
        return [
            (name, tensor.detach().to("cpu", copy=True) if kept else tensor.new_zeros(()).cpu().expand(tensor.shape))
            for name, tensor in self
        ]


def merged(named: Iterable[tuple[str, Tensor]], model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the model without adapters, by name: each adapter's product is added to its matrix.

    A matrix and its adapter must be in the same call.
    """
    tensors = dict(named)
    factors = scales(model)
    for name, tensor in tensors.items():
        if is_adapter(name):
            continue
        matrix, _, kind = name.partition(".base_layer")
        if kind == ".weight" and matrix in factors:
            a, b = (tensors[f"{matrix}.lora_{side}.default.weight"] for side in "AB")
            # Engines know no adapters; the sum is rounded once, to the dtype of the matrix.
            tensor = merged_matrix(tensor, a, b, factors[matrix])
        yield matrix + kind, tensor
