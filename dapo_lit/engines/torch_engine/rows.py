"""The rows being decoded, on the device: tokens and log-probs of each row, and the cache.

Rows that have the same prompt and the same tokens so far have one place in the cache, and are computed once, until
their tokens differ. That changes no sample: a row of a product does not depend on the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from dapo_lit.engines.protocol import Sampling, TokenIds
from dapo_lit.engines.torch_engine.decoder import Decoder, Prefilled

_GROWTH_SLOTS = 8
"""The cache grows by at least this many slots."""
_PREFILL_TOKENS = 8192
"""Prompt tokens of one prefill, padding included; bounds its memory."""
_FEWEST_PLACES = 4
"""With fewer rows, products on a CPU are summed in another order; no batch of as many rows gets fewer places."""
# A nucleus is small as a rule: these are sorted first, and the whole vocabulary only where they do not reach top-p.
_FIRST_CANDIDATES = 64


@dataclass(frozen=True)
class Move:
    """The new places of rows and slots between two steps; arrays are on the host."""

    rows: np.ndarray
    """[kept] the index that each row that stays had before."""
    starts: np.ndarray
    """[rows afterwards] slot of the first token; position = slot - start."""
    old: slice
    """Slots in use before."""
    new: slice
    """The same tokens' slots afterwards; the next token goes to slot `new.stop`."""
    lays_out: bool
    """True if slots or room do not suffice as they are."""
    most: int
    """Slots that these rows can need."""

    @property
    def kept(self) -> int:
        return len(self.rows)


class Entering:
    """Prompts of the rows that enter, each distinct run of equal neighbours prefilled once."""

    def __init__(self, decoder: Decoder, prompts: Sequence[TokenIds]) -> None:
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        distinct: list[TokenIds] = []
        row_prompts: list[int] = []
        for prompt in prompts:
            # Neighbours only: requests of a group follow each other, and comparing all pairs would cost more than it
            # saves.
            if not distinct or not np.array_equal(prompt, distinct[-1]):
                distinct.append(prompt)
            row_prompts.append(len(distinct) - 1)
        self.prompt_of_row = np.array(row_prompts, np.int64)
        """[rows] which of the distinct prompts each row has."""
        self._chunks: list[tuple[Tensor, Prefilled]] = []  # prompts
        self.hidden = torch.empty(len(distinct), decoder.hidden_size, dtype=decoder.dtype, device=decoder.device)
        """[prompts, hidden]: what the first token is sampled from."""
        # By length, because a prefill is padded to its longest prompt.
        for chunk in _by_length(distinct):
            prefilled = decoder.prefill([distinct[i] for i in chunk])
            target = torch.tensor(chunk, device=decoder.device)
            self.hidden[target] = prefilled.hidden
            self._chunks.append((target, prefilled))

    def write(self, index: int, layer: Tensor) -> None:
        """Copies a layer's keys and values, right-aligned, to layer: [2, >= prompts, key heads, width, head_dim]."""
        for target, prefilled in self._chunks:
            prompt = prefilled.layers[index]
            # Six times as fast as assigning to layer[:, target].
            layer[:, :, :, layer.shape[3] - prompt.shape[3] :].index_copy_(1, target, prompt)


def _by_length(prompts: Sequence[TokenIds]) -> list[list[int]]:
    """Indices of prompts in chunks of similar length, each at most _PREFILL_TOKENS with padding (or one prompt)."""
    chunks: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        if not chunks or (len(chunks[-1]) + 1) * len(prompts[index]) > _PREFILL_TOKENS:
            chunks.append([])
        chunks[-1].append(index)
    return chunks


class Rows:
    """The device's part of a batch. Places are packed at the front; nothing is computed for one that is not in use."""

    def __init__(self, decoder: Decoder, is_eos: Tensor) -> None:
        self.capacity = 0
        """Slots of a row; 0 before the first move."""
        self._decoder = decoder
        self._is_eos = is_eos.cpu().numpy()
        # [B, capacity] tokens and their log-probs by slot, and the last tokens on the host.
        self._ids = torch.empty(0, 0, dtype=torch.int64, device=decoder.device)
        self._logprobs = torch.empty(0, 0, device=decoder.device)
        self._tokens = np.empty(0, np.int64)
        # [B] each row's place, and what the next token is sampled from at each place.
        self._places = np.empty(0, np.int64)
        self._hidden = torch.empty(0, decoder.hidden_size, dtype=decoder.dtype, device=decoder.device)
        self._cache = decoder.empty_cache()

    @property
    def vocab_size(self) -> int:
        return len(self._is_eos)

    @property
    def room(self) -> int:
        """Rows that fit without a new layout."""
        return self._cache.room

    def move(self, move: Move, entering: Entering) -> None:
        num_rows, width = len(move.starts), move.new.stop
        if move.lays_out:
            # Attention reads a cache with unused slots as slowly as a full one, and growing copies all of it.
            self.capacity = min(width + max(_GROWTH_SLOTS, 2 * math.isqrt(width)), move.most)
        # Indices are computed on the host, where the lengths are, and sent once.
        rows = self._placed(move.rows)
        for name in ("_ids", "_logprobs"):
            before: Tensor = getattr(self, name)
            after = before.new_zeros(num_rows, self.capacity)
            after[: move.kept, move.new] = before[rows, move.old]
            setattr(self, name, after)
        # Places and not rows: rows with equal tokens so far share one.
        used, places = np.unique(self._places[move.rows], return_inverse=True)
        kept = len(used)
        # The last places fill those that nobody uses any more; `used` becomes the former place of each place.
        holes, last = np.setdiff1d(np.arange(kept), used), used[used >= kept]
        self._cache.fill(self._placed(holes), self._placed(last))
        now = np.concatenate([used[used < kept], holes])
        self._places = np.concatenate([now[places], kept + entering.prompt_of_row])
        former = np.empty(kept, np.int64)
        former[now] = used
        # Idle places at the end, so that sums of a small batch have the order of a larger one.
        count = max(kept + len(entering.hidden), min(_FEWEST_PLACES, num_rows))
        idle = count - kept - len(entering.hidden)
        hidden = self._hidden
        self._hidden = torch.cat(
            [hidden[self._placed(former)], entering.hidden, hidden.new_zeros(idle, hidden.shape[1])]
        )
        if move.lays_out:
            self._cache.lay_out(kept, num_rows, move.old, move.new, self.capacity, move.most)
        # Idle places start with the first: their attention must see a key, or it gives NaN.
        starts = np.full(count, move.starts.min())
        starts[self._places] = move.starts
        self._cache.enter(torch.from_numpy(starts), kept, width)
        for index, layer in enumerate(self._cache.layers):
            entering.write(index, layer[:, kept:, :, :width])

    def sample(self, uniforms: np.ndarray, slot: int, sampling: Sampling, given: Mapping[int, int]) -> np.ndarray:
        """Draws the next token of every row, for slot `slot`; uniforms: [B].

        given: by row, tokens that are not drawn. Returns [B]: whether a drawn token is an EOS.
        """
        # Products by place, draws by row: rows that share a place differ only in their noise.
        logits = self._decoder.logits(self._hidden)[self._placed(self._places)]
        tokens, logprobs = draw(logits, torch.from_numpy(uniforms).to(logits.device), sampling)
        rows = np.fromiter(given, np.int64)
        if given:
            tokens[self._placed(rows)] = self._placed(np.fromiter(given.values(), np.int64))
        self._ids[:, slot] = tokens
        self._logprobs[:, slot] = logprobs
        # Waits for the device: the host must know which rows have ended.
        self._tokens = tokens.cpu().numpy()
        at_eos: np.ndarray = self._is_eos[self._tokens]
        at_eos[rows] = False
        return at_eos

    def decode(self, slot: int, alive: np.ndarray) -> None:
        """Runs the tokens at `slot` through the model, so that the next ones of `alive` [B] can be drawn."""
        tokens = self._part(np.flatnonzero(alive))
        self._hidden = self._decoder.decode(self._placed(tokens), slot, self._cache)

    def _part(self, rows: np.ndarray) -> np.ndarray:
        """Gives `rows` that have drawn different tokens different places; returns the token of each place."""
        # One number for each pair of place and token.
        drawn = self._places[rows] * len(self._is_eos) + self._tokens[rows]
        _, first, place = np.unique(drawn, return_index=True, return_inverse=True)
        parents, tokens = self._places[rows[first]], self._tokens[rows[first]]
        # The first token of a place keeps it.
        leaves = np.append(False, parents[1:] == parents[:-1])
        count, target = len(self._hidden), parents.copy()
        if leaves.any():
            # Places that nobody uses any more first, then new ones at the end.
            free = np.append(np.setdiff1d(np.arange(count), parents), np.arange(count, count + leaves.sum()))
            target[leaves] = free[: leaves.sum()]
            count = max(count, int(target.max()) + 1)
            self._cache.branch(self._placed(target[leaves]), self._placed(parents[leaves]), count)
        self._places[rows] = target[place]
        of_place = np.zeros(count, np.int64)
        of_place[target] = tokens
        return of_place

    def read(self, rows: np.ndarray, slots: slice) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and log-probs [rows, slots], on the host."""
        chosen = self._placed(rows)
        return self._ids[chosen, slots].cpu().numpy(), self._logprobs[chosen, slots].cpu().numpy()

    def _placed(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(indices).to(self._decoder.device)


def draw(
    logits: Float32[Tensor, "B V"], uniforms: Float64[Tensor, "B"], sampling: Sampling
) -> tuple[Int64[Tensor, "B"], Float32[Tensor, "B"]]:
    """Draws one token a row by inverse CDF.

    uniforms: in (0, 1).
    Returns tokens and log-probs (nats) under the distribution drawn from: temperature first, then
    top-p, renormalised. Temperature 0 is greedy (the lowest id wins a tie): that distribution has one
    token, so its log-prob is 0. A row with a NaN gives a NaN log-prob.
    """
    if sampling.temperature == 0:
        highest, tokens = logits.max(dim=-1)
        return tokens, highest - highest  # 0, or NaN where the logits are
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_p == 1:
        return _inverse_cdf(torch.log_softmax(logits, dim=-1), uniforms)
    candidates, logprobs = _nucleus(logits, sampling.top_p)
    chosen, logprob = _inverse_cdf(logprobs, uniforms)
    return candidates.gather(-1, chosen[:, None]).squeeze(-1), logprob


def _inverse_cdf(
    logprobs: Float[Tensor, "B V"], uniforms: Float64[Tensor, "B"]
) -> tuple[Int64[Tensor, "B"], Float[Tensor, "B"]]:
    """Index of the first entry whose CDF exceeds the uniform, and its log-prob."""
    # One uniform a row instead of one a vocabulary entry (Gumbel-max) is what makes counter-based noise cheap. Tokens
    # lie in vocabulary order, not by probability: a rounding difference between two batches then moves a boundary by
    # as much, where it could swap two near-ties of a sorted order.
    cdf = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    # Strictly above (right=True): an entry of probability 0 leaves the CDF flat and is never the first. Scaling by the
    # total instead of 1 keeps the last uniforms inside, whatever the rounding of the sum.
    # Float64: a uniform of 2**-53 must not round to 0, nor one below 1 to 1.
    thresholds = uniforms[:, None] * cdf[:, -1:]
    tokens = torch.searchsorted(cdf, thresholds, right=True).clamp_(max=logprobs.shape[-1] - 1)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def _nucleus(logits: Float[Tensor, "B V"], top_p: float) -> tuple[Int64[Tensor, "B kept"], Float[Tensor, "B kept"]]:
    """The fewest tokens with this probability, in vocabulary order.

    Returns ids and their renormalised log-probs, -inf where a row keeps fewer than another.
    """
    vocab = logits.shape[-1]
    # The nucleus is small as a rule: look at the highest few first, at more only if some row needs them.
    count, total = min(_FIRST_CANDIDATES, vocab), logits.logsumexp(-1, keepdim=True)
    while True:
        values, ids = logits.topk(count, dim=-1)
        probs = (values - total).exp().double()
        mass_before = probs.cumsum(-1) - probs
        if count == vocab or bool((mass_before[:, -1] + probs[:, -1] >= top_p).all()):
            break
        count = min(8 * count, vocab)
    outside = mass_before >= top_p
    # The likeliest token stays even if it alone has more than top_p.
    outside[:, 0] = False
    ids, order = ids.sort(dim=-1)
    return ids, torch.log_softmax(values.masked_fill(outside, -torch.inf).gather(-1, order), dim=-1)
