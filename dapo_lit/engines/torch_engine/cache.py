"""Keys and values of the rows being decoded, in memory that is used again when the cache grows.

Rows are packed at the front and write their next token at the same slot. A row that enters takes a free place and
moves no other. On a CPU memory is asked for once: the first use of a page costs more than copying it.
"""

import math

import torch
from torch import Tensor

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
        """Of the rows in use."""
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
                layer.index_copy_(1, places, layer.index_select(1, sources))

    def branch(self, places: Tensor, parents: Tensor, count: int) -> None:
        """The rows `places`, with new ones `count` in all, get what the rows `parents` hold."""
        self.fill(places, parents)
        source = torch.arange(count, device=self.starts.device)
        source[places] = parents
        self.layers = [layer[:, :count] for layer in self._laid_out]
        self.starts = self.starts[source]
        self.bias = None if self.bias is None else self.bias[source]

    def lay_out(self, kept: int, rows: int, old: slice, new: slice, capacity: int, most: int) -> None:
        """Gives room for `rows` rows of `capacity` slots, later `most`; `old` slots of the first rows become `new`."""
        shape = (2, rows, self._heads[0], capacity, self._heads[1])
        for index, before in enumerate(self._laid_out):
            flat, self._spare = self._spare, self._flat[index]
            if len(flat) < math.prod(shape):
                slots = min(most, _HEADROOM * capacity) if flat.device.type == "cpu" else capacity
                flat = flat.new_empty(math.prod(shape) // capacity * slots)
            after = flat[: math.prod(shape)].view(shape)
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
                layer[:, kept:, :, :width] = 0  # weight 0 times what the memory held before may be NaN
        self.first, self.starts, self.bias = first, starts.to(self._spare.device), None
        if bool((starts > first).any()):
            unused = torch.arange(capacity, device=self.starts.device) < self.starts[:, None]
            bias = torch.zeros(unused.shape, dtype=self._spare.dtype, device=self.starts.device)
            self.bias = bias.masked_fill_(unused, -torch.inf)[:, None, None]
