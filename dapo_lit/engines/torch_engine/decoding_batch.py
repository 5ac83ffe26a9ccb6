"""The sequences being decoded: where each row is in the cache, when rows leave and when the next ones enter."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dapo_lit.engines import noise
from dapo_lit.engines.protocol import SampleRequest, Sampling
from dapo_lit.engines.samples import PartialSample, Sample, SampleKey, TokenIds
from dapo_lit.engines.torch_engine import inverse_cdf as draws
from dapo_lit.engines.torch_engine.decoder import Cache, Decoder, Prefilled

_FREE_SHARE = 0.25
"""Share of the batch that must have ended before rows are moved: a move costs about as much as a few decode steps."""
_GROWTH_SLOTS = 64
"""The cache grows by this many slots, or by a quarter where that is more."""
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
        # One entry a row, on the host:
        self._row_requests: list[SampleRequest] = []
        self._noise_keys = np.empty(0, np.uint64)
        self._starts = np.empty(0, np.int64)  # slot of the first prompt token
        self._firsts = np.empty(0, np.int64)  # slot of the first response token
        self._sampled_from = np.empty(0, np.int64)  # slot of the first response token that was sampled here
        self._alive = np.empty(0, np.bool_)
        # On the device: [B, capacity] tokens and their log-probs by slot, and what the next token is sampled from.
        self._ids = torch.empty(0, 0, dtype=torch.int64, device=decoder.device)
        self._logprobs = torch.empty(0, 0, device=decoder.device)
        self._hidden = torch.empty(0, decoder.hidden_size, dtype=decoder.dtype, device=decoder.device)
        self._cache = Cache([], torch.empty(0), None)

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
        """Drops rows that ended, lets requests in, and lays both out in a new cache without unused leading slots."""
        kept = np.flatnonzero(self._alive)
        free = self._max_batch_size - len(kept)
        requests = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        entering = _Entering(self._decoder, [r.input_ids for r in requests])
        keys = [noise.row_key(self._sampling.seed, r.key) for r in requests]
        resumed = np.array([len(r.partial.response_ids) for r in requests], np.int64)

        old_first = int(self._starts[kept].min()) if len(kept) else self._slot
        width = max([self._slot - old_first, *entering.lengths.tolist()])
        shift = width - self._slot
        limit = self._sampling.max_response_tokens
        self._starts = np.concatenate([self._starts[kept] + shift, width - entering.lengths])
        self._firsts = np.concatenate([self._firsts[kept] + shift, width - resumed])
        self._sampled_from = np.concatenate([self._sampled_from[kept] + shift, np.full(len(requests), width)])
        self._row_requests = [*(self._row_requests[row] for row in kept.tolist()), *requests]
        self._noise_keys = np.concatenate([self._noise_keys[kept], np.array(keys, np.uint64)])
        self._alive = np.ones(len(self._starts), np.bool_)
        capacity = min(width + max(_GROWTH_SLOTS, width // 4), int(self._firsts.max()) + limit)

        rows = torch.from_numpy(kept).to(self._decoder.device)
        old, new = slice(old_first, self._slot), slice(old_first + shift, width)
        for name in ("_ids", "_logprobs"):
            before: Tensor = getattr(self, name)
            after = before.new_zeros(len(self._starts), capacity)
            after[: len(kept), new] = before[rows, old]
            setattr(self, name, after)
        self._move_cache(rows, old, new, capacity, entering)
        self._hidden = torch.cat([self._hidden[rows], entering.hidden])
        self._slot, self._capacity = width, capacity

    def _move_cache(self, rows: Tensor, old: slice, new: slice, capacity: int, entering: "_Entering") -> None:
        decoder = self._decoder
        starts = torch.from_numpy(self._starts).to(decoder.device)
        bias = None
        if self._starts.any():
            unused = torch.arange(capacity, device=decoder.device) < starts[:, None]
            bias = torch.zeros(unused.shape, dtype=decoder.dtype, device=decoder.device)
            bias = bias.masked_fill_(unused, -torch.inf)[:, None, None]
        layers = []
        for index in range(decoder.num_layers):
            shape = (2, len(self._starts), decoder.num_keys, capacity, decoder.head_dim)
            layer = torch.empty(shape, dtype=decoder.dtype, device=decoder.device)
            if bias is not None:
                layer[:, :, :, : new.stop] = 0  # weight 0 times what the memory held before may be NaN
            if len(rows):
                before = self._cache.layers[index]
                layer[:, : len(rows), :, new] = before[:, :, :, old].index_select(1, rows)
                self._cache.layers[index] = before[:, :0]  # lets it go before the next layer is allocated
            entering.write(index, layer[:, len(rows) :, :, : new.stop])
            layers.append(layer)
        self._cache = Cache(layers, starts, bias)


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
