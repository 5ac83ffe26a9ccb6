"""Weights of a Llama-family model, laid out for sampling: fused matrices that a state dict is copied into.

q, k and v are one matrix, gate and up another. The head dimensions of q and k are interleaved, which turns the rotary
embedding into one complex product; attention scores do not change, because both sides are permuted alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Layer:
    """One layer; biases are None where the architecture has none."""

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


class Weights:
    """Buffers for the tensors in `shapes` (names and shapes of the state dict), empty until `load`.

    Raises ValueError for a tensor that has no place here: the architecture computes something this sampler does not.
    """

    def __init__(self, shapes: Shapes, *, head_dim: int, tied: bool, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = shapes
        self._head_dim = head_dim
        self._device = device
        self._dtype = dtype
        # For each name, the views of buffers that take the tensor.
        self._slots: dict[str, list[Tensor]] = {}
        self.embedding = self._single("model.embed_tokens.weight")
        self.final_norm = self._single("model.norm.weight")
        # The head is kept in float32: logits rounded to bfloat16 would move log-probs by percents.
        if tied and dtype == torch.float32:
            self.head = self.embedding
        else:
            self.head = torch.empty(shapes["lm_head.weight"], device=device, dtype=torch.float32)
            self._slots.setdefault("model.embed_tokens.weight" if tied else "lm_head.weight", []).append(self.head)
        # From the names, which are those of the tensors that will come.
        num_layers = len({name.split(".")[2] for name in shapes if name.startswith("model.layers.")})
        self.layers = [self._layer(f"model.layers.{index}.") for index in range(num_layers)]
        # A tensor that is left over means arithmetic that is not done here, so samples would come from another model.
        unknown = sorted(set(shapes) - set(self._slots) - {"lm_head.weight"})
        if unknown:
            raise ValueError(f"the torch sampler does not know the tensors {unknown}; choose another policy")

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device, dtype=self._dtype)

    def _single(self, name: str) -> Tensor:
        tensor = self._empty(*self._shapes[name])
        self._slots[name] = [tensor]
        return tensor

    def _fused(self, *names: str) -> Tensor:
        rows = [self._shapes[name][0] for name in names]
        tensor = self._empty(sum(rows), *self._shapes[names[0]][1:])
        # Views of one buffer: the state dict is copied straight to its place, and nothing is concatenated at a sync.
        self._slots.update((name, [part]) for name, part in zip(names, tensor.split(rows), strict=True))
        return tensor

    def _layer(self, prefix: str) -> Layer:
        def bias(*projections: str) -> Tensor | None:
            names = [f"{prefix}{projection}.bias" for projection in projections]
            return self._fused(*names) if names[0] in self._shapes else None

        q, k, v, o = (f"self_attn.{part}_proj" for part in "qkvo")
        gate, up, down = (f"mlp.{part}_proj" for part in ("gate", "up", "down"))
        layer = Layer(
            attention_norm=self._single(f"{prefix}input_layernorm.weight"),
            qkv=self._fused(*(f"{prefix}{part}.weight" for part in (q, k, v))),
            qkv_bias=bias(q, k, v),
            qk_norm=self._qk_norm(prefix),
            output=self._single(f"{prefix}{o}.weight"),
            output_bias=bias(o),
            mlp_norm=self._single(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._fused(*(f"{prefix}{part}.weight" for part in (gate, up))),
            gate_up_bias=bias(gate, up),
            down=self._single(f"{prefix}{down}.weight"),
            down_bias=bias(down),
        )
        # After the buffers exist, because the view by halves is a view of them.
        for name in [f"{prefix}{part}.{kind}" for part in (q, k) for kind in ("weight", "bias")]:
            if name in self._slots:
                self._slots[name] = [_by_half(self._slots[name][0], self._head_dim)]
        return layer

    def _qk_norm(self, prefix: str) -> Tensor | None:
        q_norm, k_norm = f"{prefix}self_attn.q_norm.weight", f"{prefix}self_attn.k_norm.weight"
        if q_norm not in self._shapes:
            return None
        heads = [self._shapes[f"{prefix}self_attn.{part}_proj.weight"][0] // self._head_dim for part in "qk"]
        norms = self._empty(sum(heads), self._head_dim)
        for name, rows in zip((q_norm, k_norm), norms.split(heads), strict=True):
            self._slots[name] = [_by_half(row, self._head_dim)[0] for row in rows]
        return norms

    @torch.no_grad()
    def load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copies a state dict in. Raises ValueError naming all that is missing, unexpected or of another shape.

        `lm_head.weight` may be left out where it is tied; sent along, it must equal the embedding.
        """
        missing = set(self._slots)
        problems: list[str] = []
        tied_head: Tensor | None = None
        for name, tensor in named_tensors:
            if name not in self._shapes:
                problems.append(f"{name} is unexpected")
                continue
            # Before the shape is checked: a tensor of the wrong shape is one fault, not two.
            missing.discard(name)
            if tuple(tensor.shape) != self._shapes[name]:
                problems.append(f"{name} has shape {list(tensor.shape)} instead of {list(self._shapes[name])}")
            elif name in self._slots:
                for slot in self._slots[name]:
                    # In place, so that no pointer into the weights changes between steps.
                    slot.copy_(tensor.reshape(slot.shape))
            else:
                # The sender may free it once the next is asked for.
                tied_head = tensor.clone()
        problems += [f"{name} is missing" for name in self._slots if name in missing]
        if tied_head is not None and not problems and not torch.equal(self.head, tied_head.to(self.head)):
            problems.append("lm_head.weight differs from model.embed_tokens.weight, but the config ties them")
        # All at once: a model of another family would otherwise be mended name by name.
        if problems:
            raise ValueError("weights do not fit the model: " + "; ".join(problems))


def _by_half(buffer: Tensor, head_dim: int) -> Tensor:
    """View of a buffer [heads * head_dim, ...] to copy q or k into: dimensions i and i + head_dim / 2 of a head, a pair
    to the rotary embedding, become neighbours in the buffer, like the parts of a complex number.
    """
    return buffer.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2)
