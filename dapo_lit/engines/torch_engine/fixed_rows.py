"""What the device holds of the rows being decoded, in a few fixed shapes, so that CUDA graphs can repeat a step.

Numbers of rows and slots are rounded up, and what is not in use is masked. All tensors of a step are buffers that stay
in place, because a graph knows only addresses: they are as large as the largest batch so far, and smaller ones use
their first rows. When they must grow, all graphs end with them. The randomness of a draw is an input, `_uniforms`;
weights are read where `Weights.load` writes them.

Which slots and rows are in use follows from the requests of the stream alone, so a resumed run rounds alike.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.torch_engine import inverse_cdf as draws
from dapo_lit.engines.torch_engine.cache import fill
from dapo_lit.engines.torch_engine.cuda_graphs import CudaGraphs
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.entering import Entering
from dapo_lit.engines.torch_engine.rows import Move

_LEAST_ROWS, _LEAST_SLOTS = 8, 64
_GROWTH_SLOTS = 8
"""A new layout has at least this many free slots, or all that the rows can need."""
_BYTES_A_LOGIT = 20
"""A graph keeps the memory of its draw: logits, log-probs and probabilities in float32, their sums in float64."""


def rounded_up(count: int, least: int) -> int:
    """The smallest 2^k or 3 * 2^k that is neither below `count` nor below `least` (itself such a number).

    >>> [rounded_up(count, 8) for count in (1, 9, 13, 33, 512)]
    [8, 12, 16, 48, 512]
    """
    power = 1 << (max(count, least) - 1).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= max(count, least) else power


def rows_within(tokens: int, slots: int, wanted: int) -> int:
    """The most rows, up to `wanted`, whose cache of `slots` tokens a row holds at most `tokens`; at least 1.

    Rows and slots are rounded up as in a decode step.

    >>> rows_within(tokens=10_000, slots=100, wanted=90)  # rows of 128 slots, of which 78 fit; 65 rows would take 96
    64
    """
    most = tokens // rounded_up(slots, _LEAST_SLOTS)
    return next((rows for rows in range(wanted, 1, -1) if rounded_up(rows, _LEAST_ROWS) <= most), 1)


class FixedRows:
    """Kept by an engine over its streams, of which one is in use."""

    def __init__(self, decoder: Decoder, is_eos: Tensor, graphs: CudaGraphs) -> None:
        self._decoder = decoder
        self._is_eos = is_eos
        self.graphs = graphs
        self._free()

    def reset(self) -> None:
        """Takes all rows out."""
        self.capacity = self.room = self._rows = 0

    def release(self, more_than: int) -> None:
        """Takes all rows out, and frees buffers and graphs if they hold more bytes than `more_than`."""
        self.reset()
        held = sum(flat.nbytes for flat in self._cache) + _BYTES_A_LOGIT * len(self._tokens) * len(self._is_eos)
        if held > more_than:
            self._free()

    def _free(self) -> None:
        decoder = self._decoder
        self._allocate(0, 0)
        self._cache = [torch.zeros(2, 0, dtype=decoder.dtype, device=decoder.device)] * decoder.num_layers
        self.reset()

    def _allocate(self, rows: int, slots: int) -> None:
        """Buffers for so many rows and slots, except the cache; ends the graphs, which know the old ones."""
        self.graphs.clear()
        device, decoder = self._decoder.device, self._decoder
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._uniforms = torch.full((rows,), 0.5, dtype=torch.float64, device=device)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._starts = torch.zeros(rows, dtype=torch.int64, device=device)
        self._at_eos = torch.zeros(rows, dtype=torch.bool, device=device)
        self._hidden = torch.zeros(rows, decoder.hidden_size, dtype=decoder.dtype, device=device)
        # Slots first: the addresses of the first rows do not depend on the number of slots in use.
        self._ids = torch.zeros(slots, rows, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(slots, rows, device=device)
        # The decoder replaces its table when it grows; this one stays where the graphs look for it.
        self._table = decoder.rotations(slots)

    def _layer(self, index: int, rows: int, capacity: int) -> Tensor:
        """The first rows of a layer's keys and values, [2, rows, key heads, capacity, head_dim]."""
        shape = (2, rows, self._decoder.num_keys, capacity, self._decoder.head_dim)
        return self._cache[index][:, : math.prod(shape[1:])].view(shape)

    def move(self, move: Move, entering: Entering) -> None:
        kept, num_rows = move.kept, len(move.starts)
        place, holes, last = (
            torch.from_numpy(index).to(self._decoder.device) for index in (move.rows, move.holes, move.last)
        )
        ids, logprobs = self._ids[move.old][:, place], self._logprobs[move.old][:, place]
        hidden = torch.cat([self._hidden[place], entering.hidden])
        for index in range(self._decoder.num_layers):
            fill(self._layer(index, self.room, self.capacity), holes, last, move.old)
        if move.lays_out:
            self._lay_out(move)
        self._ids[move.new, :kept], self._logprobs[move.new, :kept] = ids, logprobs
        self._hidden[:num_rows] = hidden
        self._starts[:num_rows].copy_(torch.from_numpy(move.starts))
        self._starts[num_rows:] = 0
        self._rows = rounded_up(num_rows, _LEAST_ROWS)
        for index in range(self._decoder.num_layers):
            layer = self._layer(index, num_rows, self.capacity)[:, kept:]
            layer.zero_()  # weight 0 times what an earlier row has left may be NaN
            entering.write(index, layer[:, :, :, : move.new.stop])

    def _lay_out(self, move: Move) -> None:
        """Gives the rows room, in the buffers that are there if they are large enough."""
        room = rounded_up(len(move.starts), _LEAST_ROWS)
        capacity = rounded_up(min(move.new.stop + _GROWTH_SLOTS, move.most), _LEAST_SLOTS)
        size = room * self._decoder.num_keys * capacity * self._decoder.head_dim
        grows = room > len(self._tokens) or capacity > len(self._ids) or size > self._cache[0].shape[1]
        if grows:
            self._allocate(max(room, len(self._tokens)), max(capacity, len(self._ids)))
            size = max(size, self._cache[0].shape[1])
        for index, flat in enumerate(self._cache):
            kept = self._layer(index, self.room, self.capacity)[:, : move.kept, :, move.old].clone()
            # Masked slots count with weight 0, and what the memory held before may be NaN.
            self._cache[index] = flat.new_zeros(2, size) if grows else flat.zero_()
            self._layer(index, room, capacity)[:, : move.kept, :, move.new] = kept
        self.room, self.capacity = room, capacity

    def sample(self, uniforms: np.ndarray, slot: int, sampling: Sampling) -> np.ndarray:
        num_rows = len(uniforms)
        self._uniforms[:num_rows].copy_(torch.from_numpy(uniforms))
        self._slot.fill_(slot)
        draw: Callable[[], None] = partial(self._draw, sampling)
        if draws.has_fixed_shapes(sampling):
            settings = (sampling.temperature, sampling.top_p, sampling.top_k)
            self.graphs.run(("draw", self._rows, *settings), draw)
        else:
            draw()
        return self._at_eos[:num_rows].cpu().numpy()

    def decode(self, slot: int) -> None:
        """Of the slot that was sampled last."""
        self.graphs.run(("decode", self._rows, self.capacity), self._decode)

    def _draw(self, sampling: Sampling) -> None:
        rows = self._rows
        logits = self._decoder.logits(self._hidden[:rows])
        tokens, logprobs = draws.draw(logits, self._uniforms[:rows], sampling)
        self._tokens[:rows] = tokens
        self._at_eos[:rows] = self._is_eos[tokens]
        self._ids[:, :rows].index_copy_(0, self._slot, tokens[None])
        self._logprobs[:, :rows].index_copy_(0, self._slot, logprobs[None])

    def _decode(self) -> None:
        rows = self._rows
        layers = [self._layer(index, rows, self.capacity) for index in range(self._decoder.num_layers)]
        self._hidden[:rows] = self._decoder.decode_fixed(
            self._tokens[:rows], self._slot, self._starts[:rows], layers, self._table
        )

    def read(self, rows: np.ndarray, slots: slice) -> tuple[np.ndarray, np.ndarray]:
        place = torch.from_numpy(rows).to(self._ids.device)
        return self._ids[slots][:, place].T.cpu().numpy(), self._logprobs[slots][:, place].T.cpu().numpy()
