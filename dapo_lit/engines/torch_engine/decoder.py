"""Forward pass of the Llama family with a key-value cache, in plain torch: llama, mistral, qwen2, qwen3.

Written for few operations a decode step, because a tiny model spends its time between operations: fused matrices,
residuals added inside the matrix products, the rotary embedding as one complex product. The queries that share a key
head are the query rows of one attention product, so that no key or value is repeated. Keys and values are packed at the
front of memory that is asked for once: the first use of a page costs more than copying it. A row that enters takes a
free place and moves no other.

Left out: gradients, dropout, mixture of experts, rotary embeddings whose frequencies change with the length (dynamic,
longrope).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Complex64, Float, Float32, Int64
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from dapo_lit.engines.protocol import TokenIds
from dapo_lit.engines.torch_engine.fused_weights import Weights
from dapo_lit.kernels import exclude_cudnn_attention

_HEADROOM = 4
"""A CPU's memory is asked for this many times as large as needed, as pages that are not used cost nothing."""


class Cache:
    """One tensor a layer, [2 (keys, values), rows, key heads, capacity, head_dim]. Finite before a row's start."""

    def __init__(self, num_layers: int, num_keys: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        self._heads = (num_keys, head_dim)
        self._flat = [torch.empty(0, dtype=dtype, device=device) for _ in range(num_layers)]
        self._spare = self._flat[0]
        self.room = 0
        """Rows that fit."""
        self._laid_out = [flat.view(2, 0, num_keys, 0, head_dim) for flat in self._flat]
        self.layers = self._laid_out
        """Keys and values of the rows in use, layer by layer."""
        self.first = 0
        """The first slot in use."""
        self.starts = torch.zeros(0, dtype=torch.int64, device=device)
        """[rows] slot of each row's first token; position = slot - start."""
        self.bias: Tensor | None = None
        """[rows, 1, 1, capacity]: 0 from a row's start on, -inf before it. None where all rows have the same start."""

    def fill(self, places: Tensor, sources: Tensor) -> None:
        """Copies the rows `sources` to the rows `places`: whole rows, as selecting slots too would copy all rows."""
        if len(places):
            for layer in self._laid_out:
                # Selected before it is written, as sources and places may overlap.
                layer.index_copy_(1, places, layer.index_select(1, sources))

    def branch(self, places: Tensor, parents: Tensor, count: int) -> None:
        """The rows `places`, with new ones `count` in all, get what the rows `parents` hold."""
        self.fill(places, parents)
        source = torch.arange(count, device=self.starts.device)
        source[places] = parents
        # Views: a decode step must not copy the cache of rows that are not in use.
        self.layers = [layer[:, :count] for layer in self._laid_out]
        self.starts = self.starts[source]
        self.bias = None if self.bias is None else self.bias[source]

    def lay_out(self, kept: int, rows: int, old: slice, new: slice, capacity: int, most: int) -> None:
        """Gives room for `rows` rows of `capacity` slots, later `most`; `old` slots of the first rows become `new`."""
        shape = (2, rows, self._heads[0], capacity, self._heads[1])
        for index, before in enumerate(self._laid_out):
            flat, self._spare = self._spare, self._flat[index]
            if len(flat) < math.prod(shape):
                # On a CPU more slots than needed now: untouched pages cost nothing, and the next growth needs no new
                # memory.
                slots = min(most, _HEADROOM * capacity) if flat.device.type == "cpu" else capacity
                flat = flat.new_empty(math.prod(shape) // capacity * slots)
            after = flat[: math.prod(shape)].view(shape)
            # Into the spare buffer, layer by layer: one more layer of memory instead of twice the cache.
            after[:, :kept, :, new] = before[:, :kept, :, old]
            after[:, :kept, :, : new.start] = 0  # as in `enter`
            self._flat[index], self._laid_out[index] = flat, after
        self.room = rows

    def enter(self, starts: Tensor, kept: int, width: int) -> None:
        """Rows from `kept` on enter, with tokens up to slot `width`; starts: [rows] on the host."""
        capacity, first = self._laid_out[0].shape[3], int(starts.min())
        self.layers = [layer[:, : len(starts)] for layer in self._laid_out]
        if bool((starts[kept:] > 0).any()):
            for layer in self.layers:
                # Weight 0 times what the memory held before may be NaN.
                layer[:, kept:, :, :width] = 0
        self.first, self.starts, self.bias = first, starts.to(self._spare.device), None
        # Equal starts need no mask, and attention without one is faster.
        if bool((starts > first).any()):
            unused = torch.arange(capacity, device=self.starts.device) < self.starts[:, None]
            bias = torch.zeros(unused.shape, dtype=self._spare.dtype, device=self.starts.device)
            self.bias = bias.masked_fill_(unused, -torch.inf)[:, None, None]


MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

exclude_cudnn_attention()

Attend = Callable[[int, Tensor], Tensor]
"""(layer index, q, k and v [N, heads, head_dim]) -> attention output [N, query heads * head_dim]."""


@dataclass
class Prefilled:
    """U prompts run through the model, right-aligned to the longest of P tokens."""

    hidden: Tensor
    """[U, hidden]: of the last prompt token, after the final norm."""
    layers: list[Tensor]
    """One a layer: keys and values [2, U, key heads, P, head_dim]. Before a shorter prompt: finite, without meaning."""


class Decoder:
    """Weights and forward pass. Raises ValueError for an architecture that it does not compute exactly."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        # Close to right is not enough: sampling from another function than the trainer's biases every ratio.
        _refuse_unsupported(config)
        self.device = device
        self.dtype = dtype
        self.num_layers: int = config.num_hidden_layers
        self.hidden_size: int = config.hidden_size
        self.num_queries: int = config.num_attention_heads
        self.num_keys: int = config.num_key_value_heads or config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._eps: float = config.rms_norm_eps
        self._windows = _windows(config)
        with torch.device("meta"):  # names and shapes, without memory
            skeleton = AutoModelForCausalLM.from_config(config)
        # Transformers' own module knows the scaled variants.
        rotary = type(skeleton.get_submodule("model.rotary_emb"))(config)
        self._frequencies = rotary.get_buffer("inv_freq").float()
        if self._frequencies.shape != (self.head_dim // 2,):
            raise ValueError(
                f"model type {config.model_type!r} rotates only a part of each head; choose another policy"
            )
        self._rope_scale = float(rotary.attention_scaling)
        self._rope_table = torch.empty(0, 1, self.head_dim // 2, dtype=torch.complex64, device=device)
        self.weights = Weights(
            {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()},
            head_dim=self.head_dim,
            tied=bool(config.tie_word_embeddings),
            device=device,
            dtype=dtype,
        )

    def empty_cache(self) -> Cache:
        return Cache(self.num_layers, self.num_keys, self.head_dim, self.device, self.dtype)

    def prefill(self, prompts: Sequence[TokenIds]) -> Prefilled:
        """Runs prompts of any lengths in one batch."""
        lengths = [len(prompt) for prompt in prompts]
        num_prompts, width = len(prompts), max(lengths)
        padded = np.zeros((num_prompts, width), np.int64)
        for row, prompt in zip(padded, prompts, strict=True):
            # Right-aligned: all rows then decode at the same slot.
            row[width - len(prompt) :] = prompt
        ids = torch.from_numpy(padded).to(self.device)
        starts = torch.tensor([width - length for length in lengths], device=self.device)
        slots = torch.arange(width, device=self.device)
        # Padding gets position 0; nothing attends to it.
        positions = (slots - starts[:, None]).clamp_(min=0)
        distance = slots[:, None] - slots
        # A slot before the start sees only itself: a row without any key would give NaN.
        seen = (distance >= 0) & ((slots >= starts[:, None])[:, None, None] | (distance == 0))
        layers: list[Tensor] = []

        def attend(index: int, qkv: Tensor) -> Tensor:
            by_head = qkv.view(num_prompts, width, -1, self.head_dim).transpose(1, 2)
            query, key, value = by_head.split([self.num_queries, self.num_keys, self.num_keys], dim=1)
            # After the rotation, so that decoding reads keys as they are.
            layers.append(torch.stack([key, value]))
            window = self._windows[index]
            # The fused kernel knows causal masks without reading one.
            causal = min(lengths) == width and (window is None or window >= width)
            mask = None if causal else seen if window is None else seen & (distance < window)
            gqa = self.num_queries != self.num_keys
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=gqa)
            return out.transpose(1, 2).reshape(num_prompts * width, -1)

        hidden = self._forward(ids.flatten(), self.rotations(width)[positions.flatten()], attend)
        return Prefilled(self._norm(hidden.view(num_prompts, width, -1)[:, -1], self.weights.final_norm), layers)

    def decode(self, tokens: Int64[Tensor, "B"], slot: int, cache: Cache) -> Float[Tensor, "B H"]:
        """Writes keys and values of one token a row at `slot`; returns hidden states after the final norm."""
        rows, end = len(tokens), slot + 1
        table = self.rotations(end)
        position = slot - cache.first
        rotations = table[position : position + 1] if cache.bias is None else table[slot - cache.starts]

        def attend(index: int, qkv: Tensor) -> Tensor:
            layer = cache.layers[index]
            written = qkv[:, self.num_queries :].view(rows, 2, self.num_keys, self.head_dim)
            # One slot for all rows: a slice, where a scatter by position would be needed with left-aligned rows.
            layer[:, :, :, slot].copy_(written.transpose(0, 1))
            window = self._windows[index]
            # Rows write side by side, so the distance between slots is the distance between positions.
            first = cache.first if window is None else max(cache.first, end - window)
            query = qkv[:, : self.num_queries].view(rows, self.num_keys, -1, self.head_dim)
            bias = None if cache.bias is None else cache.bias[..., first:end]
            return _attention(query, layer[:, :, :, first:end], bias).view(rows, -1)

        return self._norm(self._forward(tokens, rotations, attend), self.weights.final_norm)

    def logits(self, hidden: Float[Tensor, "B H"]) -> Float32[Tensor, "B V"]:
        """The product itself is in the dtype of the head."""
        head = self.weights.head
        # Rounded logits would give the log-prob of another distribution than the one drawn from.
        return F.linear(hidden.to(head.dtype), head).float()

    def _forward(
        self, tokens: Int64[Tensor, "T"], rotations: Complex64[Tensor, "#T 1 half_dim"], attend: Attend
    ) -> Float[Tensor, "T H"]:
        """Hidden states before the final norm."""
        hidden = F.embedding(tokens, self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            qkv = F.linear(self._norm(hidden, layer.attention_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(len(tokens), -1, self.head_dim)
            # A view: the next lines change qkv.
            rotated = qkv[:, : self.num_queries + self.num_keys]
            if layer.qk_norm is not None:
                # Norm before rotation, as in Qwen3.
                rotated.copy_(F.rms_norm(rotated, (self.head_dim,), None, self._eps) * layer.qk_norm)
            self._rotate(rotated, rotations)
            hidden = _add_product(hidden, attend(index, qkv), layer.output, layer.output_bias)
            gate_up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, dim=-1)
            hidden = _add_product(hidden, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        return hidden

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.hidden_size,), weight, self._eps)

    def _rotate(self, heads: Float[Tensor, "T heads head_dim"], rotations: Complex64[Tensor, "#T 1 half_dim"]) -> None:
        """In place. The two numbers of a pair are adjacent."""
        pairs = heads.unflatten(-1, (-1, 2))
        if self.dtype == torch.float32:
            torch.view_as_complex(pairs).mul_(rotations)
        else:
            pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * rotations))

    def rotations(self, positions: int) -> Complex64[Tensor, "table 1 half_dim"]:
        """The turn of each position, of `positions` or more."""
        if len(self._rope_table) < positions:
            # Doubled, so that a long response computes the table a few times and not once a token.
            count = max(positions, 2 * len(self._rope_table))
            angles = torch.outer(
                torch.arange(count, dtype=torch.float32, device=self._frequencies.device), self._frequencies
            )
            table = torch.complex(angles.cos() * self._rope_scale, angles.sin() * self._rope_scale)
            self._rope_table = table[:, None].to(self.device)
        return self._rope_table


def _attention(query: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
    """query [B, key heads, queries, D], keys_values [2, B, key heads, T, D], bias [B, 1, 1, T] -> like query."""
    if query.dtype != torch.float32:
        # Scores in half precision would be rounded before the softmax; the fused kernel keeps them in float32.
        return F.scaled_dot_product_attention(query, keys_values[0], keys_values[1], attn_mask=bias)
    # For a few queries the fused kernel costs more than the three products it replaces.
    keys, values = keys_values.flatten(1, 2).unbind()
    scores = torch.baddbmm(
        query.new_empty(1, 1, 1), query.flatten(0, 1), keys.transpose(1, 2), beta=0, alpha=query.shape[-1] ** -0.5
    )
    if bias is not None:
        scores.view(*query.shape[:3], -1).add_(bias)
    return torch.bmm(scores.softmax(-1), values).view(query.shape)


def _add_product(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        residual = residual + bias
    return torch.addmm(residual, x, weight.t())


def _windows(config: PretrainedConfig) -> list[int | None]:
    """For each layer: how many tokens a query sees, itself included; None: all."""
    window: int | None = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in layer_types]


def _refuse_unsupported(config: PretrainedConfig) -> None:
    name = f"model type {config.model_type!r}"
    if config.model_type not in MODEL_TYPES:
        raise ValueError(f"{name} is none of {', '.join(MODEL_TYPES)}, the torch sampler's; choose another policy")
    if config.hidden_act != "silu":
        raise ValueError(f"{name} with hidden_act {config.hidden_act!r} instead of 'silu'; choose another policy")
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise ValueError(f"{name} with rope type {kind!r}, which is none of {known}; choose another policy")
