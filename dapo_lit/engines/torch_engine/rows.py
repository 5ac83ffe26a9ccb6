"""What the device holds of the rows being decoded: tokens, log-probs and cache, in tensors as large as the batch."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.torch_engine import inverse_cdf as draws
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.entering import Entering

_GROWTH_SLOTS = 8
"""The cache grows by at least this many slots."""


@dataclass(frozen=True)
class Move:
    """Where rows and slots go between two steps; arrays are on the host."""

    rows: np.ndarray
    """[kept] the place that each row that stays had before."""
    holes: np.ndarray
    """Places that ended rows leave, for the rows `last`; all other rows that stay keep theirs."""
    last: np.ndarray
    starts: np.ndarray
    """[rows afterwards] slot of the first token; position = slot - start."""
    old: slice
    """Slots in use before."""
    new: slice
    """The same tokens' slots afterwards; the next token goes to slot `new.stop`."""
    lays_out: bool
    """Whether slots or room do not suffice as they are."""
    most: int
    """Slots that these rows can need."""

    @property
    def kept(self) -> int:
        return len(self.rows)


class Rows:
    """The device's part of a batch. Rows are packed at the front; nothing is computed for one that is not in use."""

    def __init__(self, decoder: Decoder, is_eos: Tensor) -> None:
        self.capacity = 0
        """Slots of a row; 0 before the first move."""
        self._decoder = decoder
        self._is_eos = is_eos
        # [B, capacity] tokens and their log-probs by slot, and what the next token is sampled from.
        self._ids = torch.empty(0, 0, dtype=torch.int64, device=decoder.device)
        self._logprobs = torch.empty(0, 0, device=decoder.device)
        self._hidden = torch.empty(0, decoder.hidden_size, dtype=decoder.dtype, device=decoder.device)
        self._tokens = torch.empty(0, dtype=torch.int64, device=decoder.device)
        self._cache = decoder.empty_cache()

    @property
    def room(self) -> int:
        """Rows that fit without a new layout."""
        return self._cache.room

    def move(self, move: Move, entering: Entering) -> None:
        kept, num_rows, width = move.kept, len(move.starts), move.new.stop
        if move.lays_out:
            # Attention reads a cache with unused slots as slowly as a full one, and growing copies all of it.
            self.capacity = min(width + max(_GROWTH_SLOTS, 2 * math.isqrt(width)), move.most)
        place = torch.from_numpy(move.rows).to(self._decoder.device)
        for name in ("_ids", "_logprobs"):
            before: Tensor = getattr(self, name)
            after = before.new_zeros(num_rows, self.capacity)
            after[:kept, move.new] = before[place, move.old]
            setattr(self, name, after)
        self._hidden = torch.cat([self._hidden[place], entering.hidden])
        self._cache.fill(torch.from_numpy(move.holes).to(place), torch.from_numpy(move.last).to(place), move.old)
        if move.lays_out:
            self._cache.lay_out(kept, num_rows, move.old, move.new, self.capacity, move.most)
        self._cache.enter(torch.from_numpy(move.starts), kept, width)
        for index, layer in enumerate(self._cache.layers):
            entering.write(index, layer[:, kept:, :, :width])

    def sample(self, uniforms: np.ndarray, slot: int, sampling: Sampling) -> np.ndarray:
        """Draws the next token of every row, for slot `slot`; uniforms: [B]. Returns [B]: whether it is an EOS."""
        logits = self._decoder.logits(self._hidden)
        self._tokens, logprobs = draws.draw(logits, torch.from_numpy(uniforms).to(logits.device), sampling)
        self._ids[:, slot] = self._tokens
        self._logprobs[:, slot] = logprobs
        return self._is_eos[self._tokens].cpu().numpy()

    def decode(self, slot: int) -> None:
        """Runs the tokens at `slot` through the model, so that the next ones can be drawn."""
        self._hidden = self._decoder.decode(self._tokens, slot, self._cache)

    def read(self, rows: np.ndarray, slots: slice) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and log-probs [rows, slots], on the host."""
        place = torch.from_numpy(rows).to(self._ids.device)
        return self._ids[place, slots].cpu().numpy(), self._logprobs[place, slots].cpu().numpy()
