"""Forward pass of the Llama family with a key-value cache, in plain torch: llama, mistral, qwen2, qwen3.

Written for few operations a decode step, because a tiny model spends its time between operations:
- q, k and v are one matrix, gate and up another; residuals are added inside the matrix products;
- the head dimensions of q and k are interleaved when weights are loaded, which turns the rotary embedding into one complex product
  (scores do not change: both sides are permuted alike);
- the queries that share a key head are the query rows of one attention call, so that no key or value is repeated.

Left out: gradients, dropout, mixture of experts, rotary embeddings whose frequencies depend on the length (dynamic, longrope).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

Attend = Callable[[int, Tensor], Tensor]
"""(layer index, qkv [N, heads, head_dim]) -> attention output [N, query heads * head_dim]."""


@dataclass
class Layer:
    """Fused weights of one layer; biases are None where the architecture has none."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """[query heads + key heads, head_dim]: qwen3's norms of q and k, a row a head."""
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    window: int | None
    """Sliding window: a query sees this many tokens, itself included; None: all."""


@dataclass
class Cache:
    """Keys and values of B rows. Rows end at the same slot: shorter ones start later, and all write their next token side by side."""

    layers: list[Tensor]
    """One a layer: [2 (key, value), B, key heads, capacity, head_dim]."""
    starts: Tensor
    """[B] int64: slot of each row's first token; position = slot - start."""
    bias: Tensor | None
    """[B, 1, 1, capacity]: 0 from a row's start on, -inf before it. None where all rows start at `uniform_start`."""
    uniform_start: int = 0


@dataclass
class Prefilled:
    """Prompts run through the model, right-aligned."""

    hidden: Tensor
    """[U, hidden]: of the last prompt token, after the final norm."""
    layers: list[Tensor] = field(default_factory=list)
    """One a layer: [2, U, key heads, P, head_dim], P the longest prompt. Slots before a shorter prompt hold finite garbage."""


class Decoder:
    """Weights and forward pass. Raises ValueError for an architecture that it does not compute exactly."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype, fp32_head: bool) -> None:
        _refuse_unsupported(config)
        self.config = config
        self.device = device
        self.dtype = dtype
        self.num_queries: int = config.num_attention_heads
        self.num_keys: int = config.num_key_value_heads or config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.eps: float = config.rms_norm_eps
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config)
        self._frequencies, self._rope_scale = _rope(skeleton, config, self.head_dim)
        self._rope_table = torch.empty(0, 1, self.head_dim // 2, dtype=torch.complex64, device=device)
        shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
        self.tied: bool = bool(config.tie_word_embeddings)
        self._allocate(shapes, fp32_head)
        unknown = sorted(set(shapes) - set(self._slots))
        if unknown:
            raise ValueError(
                f"model type {config.model_type!r} has tensors this sampler does not know: {unknown}; use rollout=vllm"
            )

    def _allocate(self, shapes: dict[str, tuple[int, ...]], fp32_head: bool) -> None:
        """Makes the fused buffers and `_slots`: for each name of the state dict, the view of a buffer that takes it."""
        options = {"device": self.device, "dtype": self.dtype}
        head_options = {"device": self.device, "dtype": torch.float32 if fp32_head else self.dtype}
        hidden = self.config.hidden_size
        self._slots: dict[str, list[Tensor]] = {}
        self.embedding = torch.empty(shapes["model.embed_tokens.weight"], **options)
        self.final_norm = torch.empty(hidden, **options)
        shared = self.tied and head_options == options
        self.head = self.embedding if shared else torch.empty(shapes["lm_head.weight"], **head_options)
        self._slots["model.embed_tokens.weight"] = (
            [self.embedding] if shared or not self.tied else [self.embedding, self.head]
        )
        self._slots["lm_head.weight"] = [self.head]
        self._slots["model.norm.weight"] = [self.final_norm]
        self._shapes = shapes
        self.layers = [self._allocate_layer(index, options) for index in range(self.config.num_hidden_layers)]

    def _allocate_layer(self, index: int, options: dict) -> Layer:
        prefix = f"model.layers.{index}."
        heads, half = self.num_queries + self.num_keys, self.head_dim // 2

        def single(name: str) -> Tensor | None:
            if prefix + name not in self._shapes:
                return None
            tensor = torch.empty(self._shapes[prefix + name], **options)
            self._slots[prefix + name] = [tensor]
            return tensor

        def fused(names: list[str], kind: str) -> Tensor | None:
            present = [prefix + name + kind for name in names if prefix + name + kind in self._shapes]
            if not present:
                return None
            if len(present) < len(names):
                raise ValueError(f"only some of {names} have a {kind[1:]}; use rollout=vllm")
            rows = [self._shapes[name][0] for name in present]
            tensor = torch.empty(sum(rows), *self._shapes[present[0]][1:], **options)
            self._slots.update(zip(present, ([part] for part in tensor.split(rows)), strict=True))
            return tensor

        def interleaved(name: str) -> None:
            """Head dimensions i and i + half become neighbours: a complex number that the rotary embedding turns."""
            if prefix + name in self._slots:
                slot = self._slots[prefix + name][0]
                self._slots[prefix + name] = [slot.unflatten(0, (-1, half, 2)).transpose(1, 2)]

        qkv = [f"self_attn.{part}_proj" for part in "qkv"]
        gate_up = ["mlp.gate_proj", "mlp.up_proj"]
        layer = Layer(
            attention_norm=_present(single("input_layernorm.weight")),
            qkv=_present(fused(qkv, ".weight")),
            qkv_bias=fused(qkv, ".bias"),
            qk_norm=None,
            output=_present(single("self_attn.o_proj.weight")),
            output_bias=single("self_attn.o_proj.bias"),
            mlp_norm=_present(single("post_attention_layernorm.weight")),
            gate_up=_present(fused(gate_up, ".weight")),
            gate_up_bias=fused(gate_up, ".bias"),
            down=_present(single("mlp.down_proj.weight")),
            down_bias=single("mlp.down_proj.bias"),
            window=_window(self.config, index),
        )
        for part in "qk":
            interleaved(f"self_attn.{part}_proj.weight")
            interleaved(f"self_attn.{part}_proj.bias")
        if prefix + "self_attn.q_norm.weight" in self._shapes:
            layer.qk_norm = torch.empty(heads, self.head_dim, **options)
            by_half = layer.qk_norm.view(heads, half, 2).transpose(1, 2)
            self._slots[prefix + "self_attn.q_norm.weight"] = [by_half[: self.num_queries]]
            self._slots[prefix + "self_attn.k_norm.weight"] = [by_half[self.num_queries :]]
        return layer

    @torch.no_grad()
    def load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copies a state dict into the fused buffers. Raises ValueError naming what is missing, unexpected or of another shape.

        `lm_head.weight` may be left out where it is tied; sent along, it must equal the embedding.
        """
        seen: set[str] = set()
        problems: list[str] = []
        for name, tensor in named_tensors:
            if name not in self._slots:
                problems.append(f"{name} is unexpected")
                continue
            seen.add(name)
            if tuple(tensor.shape) != self._shapes[name]:
                problems.append(f"{name} has shape {list(tensor.shape)}, expected {list(self._shapes[name])}")
            elif name == "lm_head.weight" and self.tied:
                tied_head = tensor
            else:
                self._fill(name, tensor)
        if self.tied and "lm_head.weight" in seen and not problems:
            embedding = self._slots["model.embed_tokens.weight"][-1]
            if not torch.equal(embedding, tied_head.to(embedding)):
                problems.append("lm_head.weight differs from model.embed_tokens.weight, but the config ties them")
        optional = {"lm_head.weight"} if self.tied else set()
        problems.extend(f"{name} is missing" for name in self._slots if name not in seen | optional)
        if problems:
            raise ValueError("weights do not fit the model: " + "; ".join(problems))

    def _fill(self, name: str, tensor: Tensor) -> None:
        for slot in self._slots[name]:
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                slot.copy_(tensor.view(2, -1))  # the same for every head
            else:
                slot.copy_(tensor.reshape(slot.shape))

    def rope_table(self, positions: int) -> Tensor:
        """[>= positions, 1, head_dim / 2] complex64: the rotation of each position."""
        if len(self._rope_table) < positions:
            count = max(positions, 2 * len(self._rope_table))
            angles = torch.outer(torch.arange(count, dtype=torch.float32), self._frequencies)
            table = torch.complex(angles.cos() * self._rope_scale, angles.sin() * self._rope_scale)
            self._rope_table = table[:, None].to(self.device)
        return self._rope_table

    def prefill(self, prompts: list[tuple[int, ...]]) -> Prefilled:
        """Runs U prompts of any lengths in one batch."""
        width = max(map(len, prompts))
        ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in prompts], device=self.device)
        starts = torch.tensor([width - len(prompt) for prompt in prompts], device=self.device)
        slots = torch.arange(width, device=self.device)
        positions = (slots - starts[:, None]).clamp_(min=0)
        distance = slots[:, None] - slots
        # A slot before the start sees itself: a row without any key would give NaN.
        seen = (distance >= 0) & ((slots >= starts[:, None])[:, None, None] | (distance == 0))
        uniform = min(map(len, prompts)) == width
        result = Prefilled(hidden=torch.empty(0))
        num_prompts, num_queries, num_keys = len(prompts), self.num_queries, self.num_keys

        def attend(index: int, qkv: Tensor) -> Tensor:
            by_head = qkv.view(num_prompts, width, -1, self.head_dim).transpose(1, 2)
            query, key, value = by_head.split([num_queries, num_keys, num_keys], dim=1)
            result.layers.append(torch.stack([key, value]))
            window = self.layers[index].window
            causal = uniform and (window is None or window >= width)
            mask = None if causal else seen if window is None else seen & (distance < window)
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=num_queries != num_keys
            )
            return out.transpose(1, 2).reshape(num_prompts * width, -1)

        hidden = self._forward(ids.flatten(), self.rope_table(width)[positions.flatten()], attend)
        result.hidden = self._norm(hidden.view(num_prompts, width, -1)[:, -1], self.final_norm)
        return result

    def decode(self, tokens: Tensor, slot: int, cache: Cache) -> Tensor:
        """Appends one token a row: writes its keys and values at `slot`, returns hidden states [B, hidden] after the final norm.

        tokens: [B] int64, the tokens at `slot`.
        """
        rows, num_keys, head_dim = len(tokens), self.num_keys, self.head_dim
        end = slot + 1
        table = self.rope_table(end)
        rotations = table[slot - cache.uniform_start] if cache.bias is None else table[slot - cache.starts]

        def attend(index: int, qkv: Tensor) -> Tensor:
            layer = cache.layers[index]
            layer[:, :, :, slot].copy_(qkv[:, self.num_queries :].view(rows, 2, num_keys, head_dim).transpose(0, 1))
            window = self.layers[index].window
            # Rows write side by side, so the distance between slots is the distance between positions.
            first = 0 if window is None else max(0, end - window)
            query = qkv[:, : self.num_queries].view(rows, num_keys, -1, head_dim)
            key, value = layer[:, :, :, first:end].unbind()
            mask = None if cache.bias is None else cache.bias[..., first:end]
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).view(rows, -1)

        return self._norm(self._forward(tokens, rotations, attend), self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, hidden] -> [B, V] float32; the product itself in the dtype of the head."""
        return F.linear(hidden.to(self.head.dtype), self.head).float()

    def _forward(self, tokens: Tensor, rotations: Tensor, attend: Attend) -> Tensor:
        """tokens [N], rotations [N or 1, 1, head_dim / 2] -> hidden states [N, hidden] before the final norm."""
        hidden = F.embedding(tokens, self.embedding)
        num_rotated = self.num_queries + self.num_keys
        for index, layer in enumerate(self.layers):
            qkv = F.linear(self._norm(hidden, layer.attention_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(len(tokens), -1, self.head_dim)
            rotated = qkv[:, :num_rotated]
            if layer.qk_norm is not None:
                rotated.copy_(F.rms_norm(rotated, (self.head_dim,), None, self.eps) * layer.qk_norm)
            if self.dtype == torch.float32:
                torch.view_as_complex(rotated.unflatten(-1, (-1, 2))).mul_(rotations)
            else:
                turned = torch.view_as_complex(rotated.float().unflatten(-1, (-1, 2))) * rotations
                rotated.copy_(torch.view_as_real(turned).flatten(-2))
            hidden = _add_product(hidden, attend(index, qkv), layer.output, layer.output_bias)
            gate_up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, dim=-1)
            hidden = _add_product(hidden, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        return hidden

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self.eps)


def _add_product(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        residual = residual + bias
    return torch.addmm(residual, x, weight.t())


def _present(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("the model lacks a tensor that every model of the Llama family has; use rollout=vllm")
    return tensor


def _window(config: PretrainedConfig, index: int) -> int | None:
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and layer_types[index] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


def _refuse_unsupported(config: PretrainedConfig) -> None:
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model type {config.model_type!r} is not one of {', '.join(MODEL_TYPES)} that the torch sampler computes; use rollout=vllm"
        )
    if config.hidden_act != "silu":
        raise ValueError(
            f"model type {config.model_type!r} with hidden_act {config.hidden_act!r}, want 'silu'; use rollout=vllm"
        )


def _rope(skeleton: torch.nn.Module, config: PretrainedConfig, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] float32 and the scale of cos and sin, from transformers' own rotary module."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ValueError(
            f"model type {config.model_type!r} with rope type {kind!r}, want one of {', '.join(ROPE_TYPES)}; use rollout=vllm"
        )
    rotary = type(skeleton.get_submodule("model.rotary_emb"))(config)
    if rotary.inv_freq.shape != (head_dim // 2,):
        raise ValueError(f"model type {config.model_type!r} rotates only a part of each head; use rollout=vllm")
    return rotary.inv_freq.float(), float(rotary.attention_scaling)
