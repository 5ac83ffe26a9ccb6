"""The sequences being decoded: where each row is in the cache, when rows leave and when the next ones enter."""

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dapo_lit.engines import noise
from dapo_lit.engines.protocol import SampleRequest, Sampling
from dapo_lit.engines.samples import PartialSample, Sample, SampleKey, TokenIds
from dapo_lit.engines.torch_engine import inverse_cdf as draws
from dapo_lit.engines.torch_engine.decoder import Decoder, Prefilled

_FREE_SHARE = 0.125
"""Share of the batch that must have ended before its places are used again."""
_GROWTH_SLOTS = 8
"""The cache grows by at least this many slots."""
_PREFILL_TOKENS = 8192
"""Prompt tokens of one prefill, padding included; bounds its memory."""


class DecodingBatch:
    """Decodes requests token by token. All rows end at the same slot, `_slot`: the one the next token goes to."""

    def __init__(
        self,
        decoder: Decoder,
        is_eos: Tensor,
        sampling: Sampling,
        max_batch_size: int,
        version: int,
    ) -> None:
        self.version = version
        self._decoder = decoder
        self._is_eos = is_eos
        self._sampling = sampling
        self._max_batch_size = max_batch_size
        self._waiting: deque[SampleRequest] = deque()
        self._slot = 0
        self._capacity = 0
        self._entered = 0
        # One entry a row, on the host:
        self._row_requests: list[SampleRequest] = []
        self._noise_keys = np.empty(0, np.uint64)
        self._starts = np.empty(0, np.int64)  # slot of the first prompt token
        self._firsts = np.empty(0, np.int64)  # slot of the first response token
        self._sampled_from = np.empty(0, np.int64)  # slot of the first response token that was sampled here
        self._order = np.empty(0, np.int64)  # of submission
        self._alive = np.empty(0, np.bool_)
        # On the device: [B, capacity] tokens and their log-probs by slot, and what the next token is sampled from.
        self._ids = torch.empty(0, 0, dtype=torch.int64, device=decoder.device)
        self._logprobs = torch.empty(0, 0, device=decoder.device)
        self._hidden = torch.empty(0, decoder.hidden_size, dtype=decoder.dtype, device=decoder.device)
        self._cache = decoder.empty_cache()

    @property
    def pending(self) -> int:
        return len(self._waiting) + int(self._alive.sum())

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        self._waiting.extend(requests)

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        """Takes samples out; their rows leave the batch with the next move."""
        wanted = frozenset(keys)
        found = {r.key: r.partial for r in self._waiting if r.key in wanted}
        self._waiting = deque(r for r in self._waiting if r.key not in wanted)
        alive = np.flatnonzero(self._alive)
        rows = alive[[self._row_requests[row].key in wanted for row in alive.tolist()]]
        for row, ids, logprobs in self._sampled(rows):
            request = self._row_requests[row]
            found[request.key] = request.partial.extended(ids, logprobs, self.version)
        self._alive[rows] = False
        return found

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Samples the next token of every row; returns the samples that it ended."""
        if not self.pending:
            return []
        if self._move_pays():
            self._move()
        logits = self._decoder.logits(self._hidden)
        uniforms = noise.uniforms(self._noise_keys, self._slot - self._firsts)
        tokens, logprobs = draws.draw(logits, torch.from_numpy(uniforms).to(logits.device), self._sampling)
        slot = self._slot
        self._ids[:, slot] = tokens
        self._logprobs[:, slot] = logprobs
        self._slot += 1
        at_eos = self._is_eos[tokens].cpu().numpy()
        at_limit = self._slot - self._firsts >= self._sampling.max_response_tokens
        ended = np.flatnonzero((at_eos | at_limit) & self._alive)
        ended = ended[np.argsort(self._order[ended])]
        samples = self._collect(ended, at_eos)
        self._alive[ended] = False
        if self._alive.any():
            self._hidden = self._decoder.decode(tokens, slot, self._cache)
        return samples

    def _collect(self, rows: np.ndarray, at_eos: np.ndarray) -> list[Sample]:
        samples = []
        for row, ids, logprobs in self._sampled(rows):
            request, finished = self._row_requests[row], bool(at_eos[row])
            if not np.isfinite(logprobs).all():
                raise FloatingPointError(
                    f"logits of {request.key} are not finite: the weights of version {self.version} are broken"
                )
            samples.append(request.partial.ended(request.key, ids, logprobs, finished=finished, version=self.version))
        return samples

    def _sampled(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(row, token ids, log-probs) of what was sampled here."""
        if not len(rows):
            return
        first = int(self._sampled_from[rows].min())
        place = torch.from_numpy(rows).to(self._ids.device)
        ids = self._ids[place, first : self._slot].cpu().numpy()
        logprobs = self._logprobs[place, first : self._slot].cpu().numpy()
        for index, row in enumerate(rows.tolist()):
            own = slice(int(self._sampled_from[row]) - first, None)
            yield row, ids[index, own], logprobs[index, own]

    def _move_pays(self) -> bool:
        num_alive = int(self._alive.sum())
        if num_alive == 0 or self._slot == self._capacity:
            return True
        full = self._max_batch_size if self._waiting else len(self._alive)
        return full - num_alive >= max(1, _FREE_SHARE * full)

    def _move(self) -> None:
        """Fills the places of rows that ended with the last rows, then lets requests in after them.

        A new cache is laid out only if the old one is full or too small; it has no unused leading slots.
        """
        kept = int(self._alive.sum())
        requests = [self._waiting.popleft() for _ in range(min(self._max_batch_size - kept, len(self._waiting)))]
        entering = _Entering(self._decoder, [r.input_ids for r in requests])
        keys = [noise.row_key(self._sampling.seed, r.key) for r in requests]
        resumed = np.array([len(r.partial.response_ids) for r in requests], np.int64)

        holes = np.flatnonzero(~self._alive[:kept])
        last = kept + np.flatnonzero(self._alive[kept:])
        rows = np.arange(kept)
        rows[holes] = last
        first = int(self._starts[rows].min()) if kept else self._slot
        longest = max(entering.lengths.tolist(), default=0)
        num_rows = kept + len(requests)
        fits = kept and self._slot < self._capacity and longest <= self._slot and num_rows <= self._cache.room
        width = self._slot if fits else max(self._slot - first, longest)
        shift = width - self._slot
        self._starts = np.concatenate([self._starts[rows] + shift, width - entering.lengths])
        self._firsts = np.concatenate([self._firsts[rows] + shift, width - resumed])
        self._sampled_from = np.concatenate([self._sampled_from[rows] + shift, np.full(len(requests), width)])
        self._order = np.concatenate([self._order[rows], self._entered + np.arange(len(requests))])
        self._entered += len(requests)
        self._row_requests = [*(self._row_requests[row] for row in rows.tolist()), *requests]
        self._noise_keys = np.concatenate([self._noise_keys[rows], np.array(keys, np.uint64)])
        self._alive = np.ones(num_rows, np.bool_)
        most = int(self._firsts.max()) + self._sampling.max_response_tokens
        if not fits:
            # Attention reads a cache with unused slots as slowly as a full one, and growing copies all of it.
            self._capacity = min(width + max(_GROWTH_SLOTS, 2 * math.isqrt(width)), most)

        place = torch.from_numpy(rows).to(self._decoder.device)
        old, new = slice(first, self._slot), slice(first + shift, width)
        for name in ("_ids", "_logprobs"):
            before: Tensor = getattr(self, name)
            after = before.new_zeros(num_rows, self._capacity)
            after[:kept, new] = before[place, old]
            setattr(self, name, after)
        self._hidden = torch.cat([self._hidden[place], entering.hidden])
        self._cache.fill(torch.from_numpy(holes).to(place), torch.from_numpy(last).to(place), old)
        if not fits:
            self._cache.lay_out(kept, num_rows, old, new, self._capacity, most)
        self._slot = width
        self._cache.enter(torch.from_numpy(self._starts), kept, width)
        for index, layer in enumerate(self._cache.layers):
            entering.write(index, layer[:, kept:, :, :width])


class _Entering:
    """Prompts of the rows that enter, each distinct run of equal neighbours prefilled once."""

    def __init__(self, decoder: Decoder, prompts: Sequence[TokenIds]) -> None:
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        distinct: list[TokenIds] = []
        row_prompts: list[int] = []
        for prompt in prompts:
            if not distinct or not np.array_equal(prompt, distinct[-1]):
                distinct.append(prompt)
            row_prompts.append(len(distinct) - 1)
        self._chunks: list[tuple[Tensor, Tensor, Prefilled]] = []  # rows, their prompt within the chunk
        self.hidden = torch.empty(len(prompts), decoder.hidden_size, dtype=decoder.dtype, device=decoder.device)
        of_row = np.array(row_prompts, np.int64)
        for chunk in _by_length(distinct):
            rows = np.flatnonzero(np.isin(of_row, chunk))
            place = {prompt: i for i, prompt in enumerate(chunk)}
            source = torch.tensor([place[p] for p in of_row[rows].tolist()], device=decoder.device)
            prefilled = decoder.prefill([distinct[i] for i in chunk])
            target = torch.from_numpy(rows).to(decoder.device)
            self.hidden[target] = prefilled.hidden[source]
            self._chunks.append((target, source, prefilled))

    def write(self, index: int, layer: Tensor) -> None:
        """Copies a layer's keys and values, right-aligned, to layer: [2, rows, key heads, width, head_dim]."""
        for target, source, prefilled in self._chunks:
            prompt = prefilled.layers[index]
            # Six times as fast as assigning to layer[:, target].
            layer[:, :, :, layer.shape[3] - prompt.shape[3] :].index_copy_(1, target, prompt.index_select(1, source))


def _by_length(prompts: Sequence[TokenIds]) -> list[list[int]]:
    """Indices of prompts in chunks of similar length, each at most _PREFILL_TOKENS with padding (or one prompt)."""
    chunks: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        if not chunks or (len(chunks[-1]) + 1) * len(prompts[index]) > _PREFILL_TOKENS:
            chunks.append([])
        chunks[-1].append(index)
    return chunks
