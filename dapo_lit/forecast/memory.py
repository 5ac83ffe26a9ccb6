"""Predicts a training step's memory on each GPU by simulating the real module, without weights, GPU or other processes.

FakeTensorMode creates tensors without storage, a fake process group has up to eight of the ranks, and torch's memory
trackers follow forward and backward as training does them: layers, then head and loss chunk by chunk. For a GPU the
tensors take a GPU's ways (`as_on_gpu`). The optimiser's step is not simulated, because its states would be counted
unsharded; they are two tensors of the size of the shards, and are added. A policy that is not sharded
(trainer.strategy=single) counts as one shard; 16-bit copies of its weights are among the activations, because autograd
keeps them until backward.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from dapo_lit.config import Config
from dapo_lit.forecast.architecture import architecture
from dapo_lit.kernels import as_on_gpu
from dapo_lit.policy.attention import Layout, layout, packed_hidden
from dapo_lit.policy.head import Head, HeadPass, chunk_rows
from dapo_lit.policy.lora import add_adapters
from dapo_lit.policy.sharding import shard
from dapo_lit.policy.wrap import run, wrap_layers

GIB = 2**30
ACTIVATIONS = "activations and temporary"
PARTS = {
    "parameters, sharded": ("Sharded Param", "Parameter"),
    "parameters, gathered": ("Unsharded Param", "All Gather"),
    "gradients": ("Sharded Grad", "Unsharded Grad", "Reduce Scatter", "Gradient"),
    ACTIVATIONS: ("Activation", "Temp", "Inputs", "Buffer", "OptState"),
}
REFERENCE, VALUES = "reference policy, sharded", "value model, shards and states"
VALUE_GRADIENTS = "value model, gradients"
STAYS = ("parameters, sharded", "optimiser states", REFERENCE, VALUES)
SIMULATED_RANKS = 8
"""FSDP cuts every tensor once for each rank; beyond this many the memory follows by arithmetic (`on_gpus`)."""
GRAPHS_GIB = 2.0
"""Memory of vLLM's compiled CUDA graphs; an assumption, nobody has measured it here."""


@dataclass(frozen=True)
class Memory:
    """Memory of one GPU, in GiB."""

    training: dict[str, float]
    """By part: the peak of forward and backward, and the optimiser's states."""
    parameters: int
    """Number of parameters of the whole policy."""
    engine: dict[str, float]
    """GiB by part that an engine in the trainer's processes keeps on the GPU while the policy trains."""

    @property
    def peak(self) -> float:
        return sum(self.training.values()) + sum(self.engine.values())

    @property
    def state(self) -> float:
        """Memory that stays in use during rollouts: shards and optimiser states, also of value model and reference."""
        return sum(self.training[part] for part in STAYS if part in self.training)


def training_memory(config: Config, quick: bool = False, micro_batches: int = 2) -> Memory:
    """Simulates micro-batches of `trainer.micro_batch_tokens` tokens, nine tenths of them response tokens.

    quick: simulate 4 and 5 layers and extrapolate; from 4 layers on every part is linear in their number. Once this is
        known for two numbers of tokens of a config, another one simulates 4 layers: what a further layer keeps is a
        line over the tokens.
    micro_batches: of an update. From the second on the gradients of the first exist, and two show the peak of any
        number; 1: an update of one, whose gradients come into being as its activations go.
    """
    sizes = architecture(config.policy)
    layers = int(sizes["num_hidden_layers"])
    if not quick or layers <= 8:
        return _simulate(config, sizes, layers, micro_batches)
    four, tokens = _simulate(config, sizes, 4, micro_batches), config.trainer.tokens_at_once
    known = _OF_A_LAYER.setdefault(_without_tokens(config, micro_batches), {})
    if len(known) < 2 and tokens not in known:
        five = _simulate(config, sizes, 5, micro_batches)
        more = {name: five.training[name] - size for name, size in four.training.items()}
        known[tokens] = _Layer(more, five.parameters - four.parameters)
    first, last = min(known), max(known)
    at = (tokens - first) / (last - first) if last > first else 0.0
    low, high = known[first], known[last]
    parts = {
        name: size + (layers - 4) * (low.training[name] + at * (high.training[name] - low.training[name]))
        for name, size in four.training.items()
    }
    count = four.parameters + (layers - 4) * low.parameters
    return Memory(parts, count, resident_engine(config, count))


@dataclass(frozen=True)
class _Layer:
    """What one more layer adds to a micro-batch."""

    training: dict[str, float]
    """GiB by part."""
    parameters: int


_OF_A_LAYER: dict[str, dict[int, _Layer]] = {}
"""By config without the number of tokens, and by that: the questions of a plan share them."""


def _without_tokens(config: Config, micro_batches: int) -> str:
    trainer = config.trainer.model_dump_json(exclude={"micro_batch_tokens"})
    parts = (config.policy, config.algorithm, config.task, config.turns)
    return "\n".join([str(micro_batches), trainer, *(part.model_dump_json() for part in parts)])


def on_gpus(memory: Memory, before: int, gpus: int) -> Memory:
    """The memory of a sharded policy on another number of GPUs, by arithmetic: shards and states are divided among
    them, and with them the gradients that are kept between micro-batches, of which there are two or more; what a GPU
    gathers and computes stays."""
    factor = before / gpus
    parts = {
        name: size * (factor if name in (*STAYS, VALUE_GRADIENTS) else 1.0) for name, size in memory.training.items()
    }
    parts["gradients"] += (factor - 1) * memory.training["optimiser states"] / 2  # two states of a gradient's size
    return replace(memory, training=parts)


def engine_weights(config: Config, parameters: int) -> float:
    """GiB of an engine's weights on one GPU of the trainer."""
    rollout, dtype = config.rollout, config.engine_dtype(config.trainer.accelerator != "cpu")
    gpus = rollout.vllm.tensor_parallel if rollout.engine == "vllm" else 1
    return float(getattr(torch, dtype).itemsize * parameters / gpus / GIB)


def resident_engine(config: Config, parameters: int) -> dict[str, float]:
    """GiB by part of what an engine in the trainer's processes holds while the policy trains.

    The torch engine has its own weights and frees its cache; vLLM keeps both, unless it sleeps, and its CUDA graphs.
    """
    rollout, weights = config.rollout, {"engine weights": engine_weights(config, parameters)}
    if rollout.engine == "torch":
        return weights
    if rollout.vllm.placement == "server":
        return {}
    graphs = {"engine CUDA graphs": GRAPHS_GIB}
    return graphs if rollout.vllm.sleep else weights | {"engine keys and values": rollout.vllm.cache_gb} | graphs


def _simulate(config: Config, sizes: dict[str, Any], layers: int, micro_batches: int) -> Memory:
    settings = config.trainer
    planned = settings.devices * settings.num_nodes
    # An update of one micro-batch keeps no gradients between any, which the arithmetic would take away.
    size = min(planned, SIMULATED_RANKS) if micro_batches > 1 else planned
    others = {k: v for k, v in sizes.items() if k not in ("model_type", "num_hidden_layers", "layer_types")}
    shape = AutoConfig.for_model(sizes["model_type"], num_hidden_layers=layers, **{"vocab_size": 64} | others)
    tokens = settings.tokens_at_once
    longest = min(tokens, config.task.max_prompt_tokens + config.task.max_response_tokens + config.turns.most_observed)
    lengths = [longest] * (tokens // longest) + ([tokens % longest] if tokens % longest else [])
    packed = layout(lengths)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        mesh = init_device_mesh("cpu", (size,))
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        model = _without_storage(shape, config, mode)
        with mode:
            tracker = _prepared(model, config, mesh)
            count = sum(p.numel() for p in model.parameters())
            trained = _local_bytes(p for p in model.parameters() if p.requires_grad)
            other_models = _other_models(config, model)
            ids = torch.zeros(tokens, dtype=torch.int64, device="cpu")
            rows = torch.arange(tokens // 10, tokens, device="cpu")
            # The simulation is on a CPU, the run on the planned accelerator.
            on_gpu = settings.accelerator != "cpu"
            chunk = chunk_rows(shape.vocab_size, "cuda" if on_gpu else "cpu")
            with as_on_gpu(on_gpu), tracker:
                inputs = (ids, packed, rows, ids[rows])
                for _ in range(micro_batches):
                    run(model, type(model).__call__, *inputs, rows_per_chunk=chunk).backward()
                    tracker.reset_mod_stats()  # or it refuses a second pass; what is alive is still counted
            (peak,) = [v for v in tracker.get_tracker_snapshot("peak").values() if v]
    finally:
        dist.destroy_process_group()
    named = {str(getattr(key, "value", key)): float(value) / GIB for key, value in peak.items()}
    parts = {part: sum(named.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    parts[ACTIVATIONS] += named.get("Total", 0.0) - sum(v for k, v in named.items() if k != "Total")
    training = parts | {"optimiser states": 2 * trained / GIB} | other_models
    simulated = Memory(training, count, resident_engine(config, count))
    return on_gpus(simulated, size, planned) if size < planned else simulated


class _NoQuestions:
    """In front of a tracker. Autograd asks fake tensors for their device by way of it, which is half of all operations
    in which it would look for memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return FakeTensor.__torch_dispatch__(func, types, args)
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]


class _Tracker(_NoQuestions, MemTracker):
    """Of a policy on one GPU."""


class _ShardedTracker(_NoQuestions, FSDPMemTracker):
    """Of a policy that FSDP shards."""


def _prepared(model: PreTrainedModel, config: Config, mesh: DeviceMesh) -> MemTracker:
    """Shards the policy, or makes it compute in 16 bits, as training does; returns a tracker of its memory."""
    settings = config.trainer
    dtype, recomputes = getattr(torch, config.compute_dtype), settings.activation_checkpointing == "full"
    model.forward = MethodType(_loss, model)  # the tracker follows modules that are called
    # Adapters are simulated as sharded over one GPU: the plain tracker refuses weights that are not trained.
    if settings.strategy == "single" and config.policy.lora is None:
        narrow = dtype if dtype != model.dtype else None
        wrap_layers(model, compute_in=narrow, recomputes=recomputes)
        tracker = _Tracker()
        tracker.track_external(model)
        return tracker
    wrap_layers(model, recomputes=recomputes)
    shard(model, mesh, dtype=dtype, separate_head=False)
    return _ShardedTracker(model)


def _loss(
    model: PreTrainedModel, ids: Tensor, packed: Layout, rows: Tensor, targets: Tensor, *, rows_per_chunk: int
) -> Tensor:
    """The sum of the targets' log-probs, by way of the head as step/loss.py has it."""
    hidden = packed_hidden(model, ids, packed)[rows]
    head = HeadPass(hidden, Head.of(model), targets, temperature=1.0, rows_per_chunk=rows_per_chunk)
    loss = hidden.new_zeros((), dtype=torch.float64)
    for chunk in head.chunks():
        part = chunk.logprobs.sum()
        chunk.backward(part)
        loss += part.detach()
    return head.with_gradient(loss)


def _without_storage(shape: PretrainedConfig, config: Config, mode: FakeTensorMode) -> PreTrainedModel:
    """The policy of the run, with its adapters."""
    dtype, lora = getattr(torch, config.policy.dtype), config.policy.lora
    if lora is None:
        with mode:
            return AutoModelForCausalLM.from_config(shape, dtype=dtype).eval()
    with torch.device("meta"):  # peft moves new adapters to a device, which FakeTensorMode refuses
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval()
    add_adapters(model, rank=lora.rank, alpha=lora.alpha)
    with mode:
        model.to_empty(device="cpu")
        model.tie_weights()
    return model


def _other_models(config: Config, model: PreTrainedModel) -> dict[str, float]:
    """GiB of reference and value model, by arithmetic. Their forward passes need less memory than the policy's updates,
    during which the value model's gradients exist too."""
    found: dict[str, float] = {}
    if config.algorithm.kl.beta and config.policy.lora is None:
        narrow = getattr(torch, config.trainer.sharding.dtype or config.policy.dtype).itemsize
        found[REFERENCE] = narrow * sum(_local(p).numel() for p in model.parameters()) / GIB
    if config.algorithm.critic is not None:
        backbone = list(model.base_model.parameters())
        trained = _local_bytes(p for p in backbone if p.requires_grad)
        found |= {VALUES: (_local_bytes(backbone) + 2 * trained) / GIB, VALUE_GRADIENTS: trained / GIB}
    return found


def _local_bytes(parameters: Iterable[Any]) -> int:
    """Bytes of this rank's shards."""
    return sum(_local(p).numel() * p.element_size() for p in parameters)


def _local(parameter: Any) -> Any:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
