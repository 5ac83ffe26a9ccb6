"""A batched sampler in plain torch: no server, no compilation, exact log-probs.

Requests enter the batch in submission order. Whenever an eighth of it has ended, the last rows fill the free places and
the next requests follow them (continuous refill); no other row is moved. A group's prompt is run once, and its samples
are computed together as long as their tokens are the same. An episode goes on in its row: what the environment said is
decoded like tokens that were drawn. Left out: CUDA graphs, speculative decoding, paging, tensor parallelism.

A sample's noise depends only on its key and on how many of its tokens were sampled before, so any batch gives the same
tokens. Log-probs then agree to rounding (about 1e-6); a token can differ only where the uniform is that close to the
boundary between two tokens.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig

from dapo_lit.engines.protocol import (
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    SampleStream,
    Sampling,
)
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.rows import Entering, Move, Rows
from dapo_lit.seeds import row_key, uniforms


class TorchEngine(RolloutEngine):
    """Samples with its own copy of the weights.

    config: of the policy; llama, mistral, qwen2 or qwen3, otherwise ValueError.
    eos_ids: every id that ends a response; it stays in the response, with its log-prob. Empty: none does.
    dtype: of weights, activations and cache; logits come from float32 products whatever it is.
    max_batch_size: sequences decoded at once.
    """

    reproducible = True
    """Noise is counter-based, and the same requests in the same order make the same batches."""

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        eos_ids: Sequence[int],
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        max_batch_size: int = 512,
    ) -> None:
        # An id outside would never be drawn, and every response would count as truncated.
        outside = [token for token in eos_ids if not 0 <= token < config.vocab_size]
        if outside:
            raise ValueError(f"eos_ids {outside} are outside the vocabulary of {config.vocab_size}")
        self._decoder = Decoder(config, torch.device(device), dtype)
        # A mask, because models have several tokens that end a response.
        self._is_eos = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
        self._is_eos[torch.tensor(list(eos_ids), dtype=torch.int64, device=device)] = True
        self.concurrency = max_batch_size

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copies the weights in.

        Raises ValueError naming missing, unexpected or wrongly shaped tensors; nothing can be sampled until a sync
        succeeds.
        """
        self.version = None
        self._decoder.weights.load(named_tensors)
        self.version = version

    def open(self, sampling: Sampling) -> "DecodingBatch":
        if self.version is None:
            raise RuntimeError("sync_weights must be called before generate")
        # Anew for each stream, as a new version of the weights makes every cached key and value wrong.
        rows = Rows(self._decoder, self._is_eos)
        return DecodingBatch(self._decoder, rows, sampling, self.concurrency, self.version, lambda: self.version)

    def close(self) -> None:
        """Frees weights; the engine cannot be used any more."""
        del self._decoder
        self.version = None


_FREE_SHARE = 0.125
"""Share of the batch that must have ended before its places are used again."""
_MOST_GIVEN = 64
"""Tokens of an observation that are decoded one by one; a step of a small batch costs as much as a short prefill."""


class DecodingBatch(SampleStream):
    """The engine's stream: decodes token by token. Samples that end at the same token come in submission order.

    All rows end at the same slot, `_slot`: the one the next token goes to. `current`: the engine's weight version now.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: Rows,
        sampling: Sampling,
        max_batch_size: int,
        version: int,
        current: Callable[[], int | None],
    ) -> None:
        self.version = version
        self._current = current
        self._decoder = decoder
        self._rows = rows
        self._sampling = sampling
        self._max_batch_size = max_batch_size
        self._waiting: deque[SampleRequest] = deque()
        self._slot = 0
        self._entered = 0
        # One entry a row:
        self._row_requests: list[SampleRequest] = []
        self._noise_keys = np.empty(0, np.uint64)
        self._starts = np.empty(0, np.int64)  # slot of the first prompt token
        # Slot of the first response token; of an episode, as many later as it has tokens of its environment.
        self._firsts = np.empty(0, np.int64)
        self._limits = np.empty(0, np.int64)  # sampled tokens at which the response is cut off
        # Slot of the first token that is sampled for the row's request: until then its tokens are given.
        self._sampled_from = np.empty(0, np.int64)
        self._order = np.empty(0, np.int64)  # of submission
        self._alive = np.empty(0, np.bool_)
        # By sample, the rows whose turn ended in the last step: in the cache until the next one.
        self._ended_turns: dict[SampleKey, int] = {}

    @property
    def pending(self) -> int:
        return len(self._waiting) + int(self._alive.sum())

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Raises ValueError for an empty prompt or ids outside the vocabulary."""
        vocab = self._rows.vocab_size
        for request in requests:
            # Of an episode what its environment said too.
            ids = request.input_ids if len(request.partial.observations) else request.prompt_ids
            # On a GPU such an id ends the process with a device-side assertion that names no prompt.
            if not len(ids) or not 0 <= ids.min() <= ids.max() < vocab:
                raise ValueError(f"prompt of {request.key} is empty or has ids outside the vocabulary of {vocab}")
        self._waiting.extend(request for request in requests if not self._goes_on(request))

    def _goes_on(self, request: SampleRequest) -> bool:
        """Continues the row whose turn has just ended; False if it is not there, or a prefill is the shorter way."""
        row = self._ended_turns.pop(request.key, None)
        if row is None:
            return False
        seen, there = request.partial.observations, self._slot - int(self._starts[row])
        given = len(request.prompt_ids) + len(request.partial.response_ids) + len(seen) - there
        # Given tokens take a step each. A prefill takes one for all of them, and for those that are there once more.
        if not 0 < given <= min(there, _MOST_GIVEN):
            return False
        self._row_requests[row] = request
        self._firsts[row] += given
        self._sampled_from[row] = self._slot + given
        self._limits[row] = request.limit(self._sampling)
        self._order[row] = self._entered
        self._entered += 1
        self._alive[row] = True
        return True

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        """Takes samples out; their rows leave the batch with the next move."""
        # A set: thousands may be withdrawn, and each is looked up once a waiting request.
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
        # Half of a response by other weights would have log-probs of no policy.
        if self.version != self._current():
            raise RuntimeError(
                "the weights changed while samples were being generated; take all samples before sync_weights"
            )
        if self._move_pays():
            self._move()
        # By position in the response, not by slot: slots shift when rows move.
        noise = uniforms(self._noise_keys, np.maximum(self._slot - self._firsts, 0))
        spoken = np.flatnonzero(self._alive & (self._slot < self._sampled_from))
        given = {row: self._given(row) for row in spoken.tolist()}
        at_eos = self._rows.sample(noise, self._slot, self._sampling, given)
        self._slot += 1
        at_limit = self._slot - self._firsts >= self._limits
        ended = np.flatnonzero((at_eos | at_limit) & self._alive)
        # Rows move about; samples come in the order of submission whatever row they had.
        ended = ended[np.argsort(self._order[ended])]
        samples = self._collect(ended, at_eos)
        self._alive[ended] = False
        turns = [row for row in ended.tolist() if at_eos[row] and self._row_requests[row].is_turn]
        self._ended_turns = {self._row_requests[row].key: row for row in turns}
        kept = self._alive.copy()
        kept[turns] = True
        if kept.any():
            # Not after the last sample: the next hidden states would be for nobody.
            self._rows.decode(self._slot - 1, kept)
        return samples

    def _given(self, row: int) -> int:
        """The token that the environment appended at the current slot."""
        # Counted from the end: the last one is before the first token that is sampled.
        return int(self._row_requests[row].partial.observations.ids[self._slot - int(self._sampled_from[row])])

    def _collect(self, rows: np.ndarray, at_eos: np.ndarray) -> list[Sample]:
        samples = []
        for row, ids, logprobs in self._sampled(rows):
            request, finished = self._row_requests[row], bool(at_eos[row])
            # From NaN some token is drawn too: the run would go on, with garbage for answers.
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
        # One transfer for all rows that ended: each waits for the device.
        first = int(self._sampled_from[rows].min())
        ids, logprobs = self._rows.read(rows, slice(first, self._slot))
        for index, row in enumerate(rows.tolist()):
            own = slice(int(self._sampled_from[row]) - first, None)
            yield row, ids[index, own], logprobs[index, own]

    def _move_pays(self) -> bool:
        num_alive = int(self._alive.sum())
        if num_alive == 0 or self._slot == self._rows.capacity:
            return True
        # With nothing left to enter, a move only pays by making the batch smaller.
        full = self._max_batch_size if self._waiting else len(self._alive)
        return full - num_alive >= max(1, _FREE_SHARE * full)

    def _move(self) -> None:
        """Fills the places of rows that ended with the last rows, then lets requests in after them.

        A new cache is laid out only if the old one is full or too small; it has no unused leading slots.
        """
        kept = int(self._alive.sum())
        requests = [self._waiting.popleft() for _ in range(min(self._max_batch_size - kept, len(self._waiting)))]
        entering = Entering(self._decoder, [r.input_ids for r in requests])
        keys = [row_key(self._sampling.seed, r.key) for r in requests]
        resumed = np.array([len(r.partial.response_ids) for r in requests], np.int64)
        limits = np.array([r.limit(self._sampling) for r in requests], np.int64)

        # The last rows fill holes, so that rows which stay where they are need no copy.
        holes = np.flatnonzero(~self._alive[:kept])
        last = kept + np.flatnonzero(self._alive[kept:])
        rows = np.arange(kept)
        rows[holes] = last
        first = int(self._starts[rows].min()) if kept else self._slot
        longest = max(entering.lengths.tolist(), default=0)
        num_rows = kept + len(requests)
        # A row that enters ends at the common slot, so its prompt must fit before it.
        fits = kept and self._slot < self._rows.capacity and longest <= self._slot and num_rows <= self._rows.room
        width = self._slot if fits else max(self._slot - first, longest)
        # All rows shift alike: leading slots that no row uses any more are dropped.
        shift = width - self._slot
        self._starts = np.concatenate([self._starts[rows] + shift, width - entering.lengths])
        self._firsts = np.concatenate([self._firsts[rows] + shift, width - resumed])
        self._limits = np.concatenate([self._limits[rows], limits])
        self._sampled_from = np.concatenate([self._sampled_from[rows] + shift, np.full(len(requests), width)])
        self._order = np.concatenate([self._order[rows], self._entered + np.arange(len(requests))])
        self._entered += len(requests)
        self._row_requests = [*(self._row_requests[row] for row in rows.tolist()), *requests]
        # Keys travel with their rows: noise belongs to the sample, not to its place.
        self._noise_keys = np.concatenate([self._noise_keys[rows], np.array(keys, np.uint64)])
        self._alive = np.ones(num_rows, np.bool_)
        self._rows.move(
            Move(
                rows=rows,
                starts=self._starts,
                old=slice(first, self._slot),
                new=slice(first + shift, width),
                lays_out=not fits,
                most=int((self._firsts + self._limits).max()),
            ),
            entering,
        )
        self._slot = width
