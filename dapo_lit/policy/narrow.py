"""16-bit computation with float32 weights in one process, as sharded training has it.

Every forward pass casts the weights. The optimiser, checkpoints and engines see the float32 ones, and gradients are
added up in float32, because autograd brings them back through the cast. A layer casts its own weights when it runs, so
that a layer whose activations are recomputed in backward casts them again.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dapo_lit.policy.layers import decoder_layers

T = TypeVar("T")


def compute_in(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Makes `run(model, ...)` (policy/sharding.py) compute in `dtype`, in place. Buffers keep their dtype."""
    layers = decoder_layers(model)
    inside = set(layers.modules())
    for layer in layers:
        layer.forward = partial(_call, layer.forward, tuple(layer.modules()), dtype)
    model.run = MethodType(partial(_run, tuple(m for m in model.modules() if m not in inside), dtype), model)


def _run(
    modules: Iterable[nn.Module],
    dtype: torch.dtype,
    model: PreTrainedModel,
    function: Callable[..., T],
    *args: Any,
    **kwargs: Any,
) -> T:
    with _cast(modules, dtype):
        return function(model, *args, **kwargs)


def _call(function: Callable[..., T], modules: Iterable[nn.Module], dtype: torch.dtype, *args: Any, **kwargs: Any) -> T:
    with _cast(modules, dtype):
        return function(*args, **kwargs)


@contextmanager
def _cast(modules: Iterable[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Inside the block the parameters of `modules` read as copies in `dtype`; one that is tied has one copy.

    An attribute in an instance's own dictionary hides the parameter of that name, which nn.Module looks up last.
    """
    copies: dict[Tensor, Tensor] = {}
    places = [(module, name, p) for module in modules for name, p in module._parameters.items() if p is not None]
    for module, name, parameter in places:
        if parameter not in copies:
            copies[parameter] = parameter.to(dtype)
        module.__dict__[name] = copies[parameter]
    try:
        yield
    finally:
        for module, name, _ in places:
            del module.__dict__[name]
