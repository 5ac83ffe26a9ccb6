"""How all ranks come to hold the same rollout step.

Every rank walks the same submission order and generates the groups that are its own. After each round the completions
are exchanged, so that every rank has every group with its scores. All that follows (keep rate, acceptance in
submission order, advantages, metrics, what is carried over) is then the same computation on the same data everywhere:
no rank has a quota, and no decision can differ between ranks. Scores are exchanged and never computed twice, because a
verifier's deadline may pass on one rank and not on another.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dapo_lit.ranks import Ranks
from dapo_lit.rollout.records import Completion, Group


def exchange(ranks: Ranks, groups: Sequence[Group]) -> None:
    """Fills in the completions of the groups that other ranks generated, in place."""
    if ranks.size == 1:
        return
    told = ranks.own(groups) if ranks.tells else []
    mine = {position: packed(groups[position].completions) for position in told}
    for part in ranks.gather(mine):
        for position, completions in part.items():
            groups[position].completions = unpacked(completions)


Packed = tuple[list[Completion], np.ndarray, np.ndarray, np.ndarray]


def packed(completions: Sequence[Completion]) -> Packed:
    """Completions with their tokens as arrays: (without tokens, lengths, ids, log-probs)."""
    bare = [replace(c, sample=replace(c.sample, response_ids=(), rollout_logprobs=())) for c in completions]
    ids = np.array([i for c in completions for i in c.sample.response_ids], dtype=np.int32)
    logprobs = np.array([p for c in completions for p in c.sample.rollout_logprobs], dtype=np.float64)
    return bare, np.array([c.num_tokens for c in completions], dtype=np.int64), ids, logprobs


def unpacked(content: Packed) -> list[Completion]:
    """What `packed` was given; the floats are the same bits."""
    bare, lengths, ids, logprobs = content
    ends = lengths.cumsum()[:-1]
    return [
        replace(c, sample=replace(c.sample, response_ids=tuple(i.tolist()), rollout_logprobs=tuple(p.tolist())))
        for c, i, p in zip(bare, np.split(ids, ends), np.split(logprobs, ends), strict=True)
    ]
