"""The sequences being decoded: which row each one has, when rows leave and when the next ones enter."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import torch

from dapo_lit.engines.protocol import PartialSample, Sample, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.rows import Entering, Move, Rows
from dapo_lit.seeds import row_key, uniforms

_FREE_SHARE = 0.125
"""Share of the batch that must have ended before its places are used again."""


class DecodingBatch:
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
        self._firsts = np.empty(0, np.int64)  # slot of the first response token
        # Slot of the first response token that was sampled here.
        self._sampled_from = np.empty(0, np.int64)
        self._order = np.empty(0, np.int64)  # of submission
        self._alive = np.empty(0, np.bool_)

    @property
    def pending(self) -> int:
        return len(self._waiting) + int(self._alive.sum())

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Raises ValueError for an empty prompt or ids outside the vocabulary."""
        vocab = self._rows.vocab_size
        for request in requests:
            ids = request.prompt_ids
            # On a GPU such an id ends the process with a device-side assertion that names no prompt.
            if not len(ids) or not 0 <= ids.min() <= ids.max() < vocab:
                raise ValueError(f"prompt of {request.key} is empty or has ids outside the vocabulary of {vocab}")
        self._waiting.extend(requests)

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
        noise = uniforms(self._noise_keys, self._slot - self._firsts)
        at_eos = self._rows.sample(noise, self._slot, self._sampling)
        self._slot += 1
        at_limit = self._slot - self._firsts >= self._sampling.max_response_tokens
        ended = np.flatnonzero((at_eos | at_limit) & self._alive)
        # Rows move about; samples come in the order of submission whatever row they had.
        ended = ended[np.argsort(self._order[ended])]
        samples = self._collect(ended, at_eos)
        self._alive[ended] = False
        if self._alive.any():
            # Not after the last sample: the next hidden states would be for nobody.
            self._rows.decode(self._slot - 1, self._alive)
        return samples

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
                most=int(self._firsts.max()) + self._sampling.max_response_tokens,
            ),
            entering,
        )
        self._slot = width
