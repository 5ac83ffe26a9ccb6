"""Layers of the policy as compiled kernels (torch.compile): norms, rotations and activations are fused.

Attention is left out, because it depends on the lengths of the packed sequences: a layer is two graphs with a break
between them. The number of tokens is symbolic, and all layers share the graphs, so nothing is compiled again when
lengths change. The head's operations between its matrix products are compiled too (policy/softmax.py).
"""

import torch
from transformers import PreTrainedModel

from dapo_lit.policy.layers import decoder_layers

_BACKEND = "compiled_by"


def compile_layers(model: PreTrainedModel, backend: str = "inductor") -> None:
    """Compiles the forward and backward pass of each layer, and the head's, at the first call.

    Names and the state dict do not change.

    It comes before what else wraps a layer's forward: casts of the weights and recomputation in backward.
    """
    for layer in decoder_layers(model):
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)
    setattr(model, _BACKEND, backend)


def backend_of(model: PreTrainedModel) -> str | None:
    """What compiles the model's layers; None: they are not compiled."""
    return getattr(model, _BACKEND, None)
