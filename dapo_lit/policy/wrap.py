"""Everything that wraps a model's forward passes, in one place, because the order matters.

A layer's `forward` is replaced up to three times, each time around what was there (`wrap_layers`):

1. compilation, innermost: the compiled code takes the weights as arguments, whoever gathers or casts them;
2. casts of the weights to 16 bits (one process);
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
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from dapo_lit.policy.attention import leave_uncompiled

T = TypeVar("T")


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The layers in their order, whatever the model's family calls them; `model` may be without its head."""
    config = model.config.get_text_config()
    # By number and not by name: families call the list layers, h or blocks.
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return module
    raise ValueError(
        f"the layers of a policy of model type {config.model_type!r} are not found: it has no list of "
        f"{config.num_hidden_layers} modules; set trainer.activation_checkpointing=none "
        "trainer.sharding.dtype=null"
    )


def norms_outside(model: PreTrainedModel) -> list[nn.Module]:
    """The norm after the layers, whatever the model's family calls it; for a few families one before them too."""
    inside = set(decoder_layers(model).modules())
    outside = [module for module in model.base_model.modules() if module not in inside]
    # By what is left: modules with weights of their own, except embeddings.
    return [m for m in outside if list(m.parameters(recurse=False)) and not isinstance(m, nn.Embedding)]


def wrap_layers(
    model: PreTrainedModel,
    *,
    compiles: bool = False,
    compute_in: torch.dtype | None = None,
    recomputes: bool = False,
) -> None:
    """Wraps the model in place; the order is that of this file's head.

    compiles: layers and the norm after them run as compiled code, made once for all layers and lengths at the first
        pass (about a minute).
    compute_in: dtype of weights and activations; None: the model's. The optimiser, checkpoints and engines see the
        wide weights, and gradients are added up wide, because autograd brings them back through the cast.
    recomputes: backward computes the activations of each layer again.
    """
    if compiles:
        # First: a compiled layer that has traced the attention keeps it.
        leave_uncompiled()
        for module in (*decoder_layers(model), *norms_outside(model)):
            # `dynamic`, or every new number of tokens compiles every layer again.
            module.forward = torch.compile(module.forward, dynamic=True)
    if compute_in is not None:
        layers = decoder_layers(model)
        # Each its own weights, when it runs: a recomputed layer casts them again.
        for layer in layers:
            layer.forward = partial(_with_cast, tuple(layer.modules()), compute_in, layer.forward)
        # What is outside has no forward of its own that could cast it: the head's weight is read directly.
        inside = set(layers.modules())
        outside = tuple(module for module in model.modules() if module not in inside)
        model.run = MethodType(partial(_run_cast, outside, compute_in), model)
    if recomputes:
        for layer in decoder_layers(model):
            # The reentrant kind gives adapters no gradient, as what enters a layer comes from a frozen embedding.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compiled_graphs() -> int:
    """Graphs that torch has compiled in this process so far, of layers and head; 0 where nothing is compiled."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def gather_in_run(model: PreTrainedModel) -> None:
    """Makes `run` gather the weights of a sharded model before and reshard them after."""
    model.run = MethodType(_run_gathered, model)
    register_fsdp_forward_method(model, "run")  # FSDP2's hooks watch `forward` only


def run(model: PreTrainedModel, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """`function(model, *args, **kwargs)`, with weights gathered or cast if need be."""
    prepared: Callable[..., T] | None = getattr(model, "run", None)
    return function(model, *args, **kwargs) if prepared is None else prepared(function, *args, **kwargs)


def _run_gathered(model: PreTrainedModel, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    head = model.get_output_embeddings()
    own_group = isinstance(head, FSDPModule)
    # Its weight is read directly; its forward, which would gather it, is never called.
    if own_group:
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
            # Through autograd: the gradient comes back in the wide dtype of the parameter.
            copies[parameter] = parameter.to(dtype)
        # An attribute in an instance's own dictionary hides the parameter of that name, which nn.Module looks up last.
        module.__dict__[name] = copies[parameter]
    try:
        yield
    finally:
        for module, name, _ in places:
            # The optimiser must find the wide weights again, also after an error.
            del module.__dict__[name]
