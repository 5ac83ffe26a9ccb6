"""Everything that wraps a model's forward passes, in one place, because the order matters.

A layer's `forward` is replaced up to three times, each time around what was there (`wrap_layers`):

1. compilation, innermost: the compiler must see the layer's own operations, with whatever weights they find;
2. casts of the weights to 16 bits (one process): a compiled layer reads the cast weights;
3. recomputation in backward, outermost: what is recomputed casts its weights again.

Sharding (sharding.py) comes last: FSDP2 gathers a layer's weights by hooks of the module, around its `forward`.

A model is run through `run(model, function, ...)`, which makes the weights outside the layers ready: gathered if they
are sharded, cast if they are computed in 16 bits. The model's own forward, which computes logits of all tokens, is not
used. Layer names and the state dict never change.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

Recomputed = Literal["none", "selective", "full"]
T = TypeVar("T")
_BACKEND = "compiled_by"


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The layers in their order, whatever the model's family calls them; `model` may be without its head."""
    config = model.config.get_text_config()
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return module
    raise ValueError(
        f"the layers of a policy of model type {config.model_type!r} are not found: it has no list of "
        f"{config.num_hidden_layers} modules; set trainer.activation_checkpointing=none "
        "trainer.sharding.dtype=null"
    )


def wrap_layers(
    model: PreTrainedModel,
    *,
    compile_by: str | None = None,
    compute_in: torch.dtype | None = None,
    recomputed: Recomputed = "none",
) -> None:
    """Wraps the model in place; the order is that of this file's head.

    compile_by: backend of torch.compile; None: not compiled. Norms, rotations and activations are fused. Attention
        is left out, because it depends on the lengths of the packed sequences, so a layer is two graphs. The number
        of tokens is symbolic and all layers share the graphs: nothing is compiled again when lengths change. The
        head's operations between its matrix products are compiled too (softmax.py).
    compute_in: dtype of weights and activations; None: the model's. The optimiser, checkpoints and engines see the
        wide weights, and gradients are added up wide, because autograd brings them back through the cast.
    recomputed: activations that backward computes again: none, all, or all but the costly half (selective).
    """
    if compile_by is not None:
        for layer in decoder_layers(model):
            layer.forward = torch.compile(layer.forward, dynamic=True, backend=compile_by)
        setattr(model, _BACKEND, compile_by)
    if compute_in is not None:
        layers = decoder_layers(model)
        for layer in layers:  # each its own weights, when it runs: a recomputed layer casts them again
            layer.forward = partial(_with_cast, tuple(layer.modules()), compute_in, layer.forward)
        inside = set(layers.modules())
        outside = tuple(module for module in model.modules() if module not in inside)
        model.run = MethodType(partial(_run_cast, outside, compute_in), model)
    if recomputed != "none":
        contexts: dict[str, Any] = {} if recomputed == "full" else {"context_fn": _keep_costly}
        for layer in decoder_layers(model):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, **contexts)


def gather_in_run(model: PreTrainedModel) -> None:
    """Makes `run` gather the weights of a sharded model before and reshard them after."""
    model.run = MethodType(_run_gathered, model)
    register_fsdp_forward_method(model, "run")


def run(model: PreTrainedModel, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`function(model, *args, **kwargs)`, with weights gathered or cast if need be."""
    prepared: Callable[..., T] | None = getattr(model, "run", None)
    return function(model, *args, **kwargs) if prepared is None else prepared(function, *args, **kwargs)


def backend_of(model: PreTrainedModel) -> str | None:
    """The backend that compiles the model's layers; None: they are not compiled."""
    return getattr(model, _BACKEND, None)


def _run_gathered(model: PreTrainedModel, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    head = model.get_output_embeddings()
    own_group = isinstance(head, FSDPModule)
    if own_group:  # its weight is read directly; its forward, which would gather it, is never called
        head.unshard()
    result = function(model, *args, **kwargs)
    if own_group and not torch.is_grad_enabled():  # otherwise backward reshards it
        head.reshard()
    return result


def _run_cast(
    modules: Iterable[nn.Module],
    dtype: torch.dtype,
    model: PreTrainedModel,
    function: Callable[..., T],
    *args: Any,
    **kwargs: Any,
) -> T:
    return _with_cast(modules, dtype, function, model, *args, **kwargs)


def _with_cast(
    modules: Iterable[nn.Module], dtype: torch.dtype, function: Callable[..., T], *args: Any, **kwargs: Any
) -> T:
    with _cast(modules, dtype):
        return function(*args, **kwargs)


@contextmanager
def _cast(modules: Iterable[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Inside the block the parameters of `modules` read as copies in `dtype`; one that is tied has one copy."""
    copies: dict[Tensor, Tensor] = {}
    places = [(module, name, p) for module in modules for name, p in module._parameters.items() if p is not None]
    for module, name, parameter in places:
        if parameter not in copies:
            copies[parameter] = parameter.to(dtype)
        # An attribute in an instance's own dictionary hides the parameter of that name, which nn.Module looks up last.
        module.__dict__[name] = copies[parameter]
    try:
        yield
    finally:
        for module, name, _ in places:
            del module.__dict__[name]


def _keep_costly() -> Any:
    """Keeps every other matrix product and all attention outputs, like torchtitan's selective checkpointing."""
    products = {False: 0, True: 0}  # by whether it is the recomputation: both must choose the same ones
    product = torch.ops.aten.mm.default

    def choose(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator == product:
            products[context.is_recompute] += 1
            odd = products[context.is_recompute] % 2
            return CheckpointPolicy.PREFER_RECOMPUTE if odd else CheckpointPolicy.MUST_SAVE
        # scaled_dot_product_attention and its kernels, and torch_attn::_varlen_attn
        if "attention" in str(operator) or "varlen_attn" in str(operator):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)
