"""Tables of a replay: one row per token, and one row per arm, compared with the recorded arm."""

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dapo_lit.engines.protocol import SampleKey
from dapo_lit.objective.tokens import clipped_tokens, importance_ratio
from dapo_lit.rollout.records import Completion
from dapo_lit.switches.algorithm import objective
from dapo_lit_tools.replays.recorded_step import Replayed

NOT_CLIPPED = "no"


def token_table(arm: Replayed, text_of: Callable[[Sequence[int]], str]) -> pd.DataFrame:
    """One row per response token and epoch, in the order of the batch.

    Columns: `update` and `epoch` (from 1), `problem_id`, `attempt`, `sample_index`, `position` in the response,
    `token_id`, `text`, `old_logprob`, `logprob` at the update, `ratio`, `advantage`, `clipped` (low, high, dual or no),
    `weight` of the token in the loss of its update, 0 where the loss mask is False.

    text_of: decodes token ids.
    """
    if arm.batch is None:
        return pd.DataFrame()
    found = {name: torch.cat([row[name] for row in arm.log.rows]) for name in arm.log.rows[0]}
    order = (found["epoch"] * len(arm.batch.rollout_logprobs) + found["place"]).argsort()
    found = {name: values[order] for name, values in found.items()}
    lengths = arm.batch.response_lengths
    completion = found["completion"].numpy()
    keys = [c.sample.key for group in arm.accepted for c in group.completions]
    ids, places = np.unique(found["token_id"].numpy(), return_inverse=True)
    texts = np.array([text_of([int(i)]) for i in ids], dtype=object)
    ratio = importance_ratio(found["logprob"], found["old_logprob"])
    return pd.DataFrame(
        {
            "update": found["update"].numpy(),
            "epoch": found["epoch"].numpy(),
            "problem_id": np.array([key.problem_id for key in keys], dtype=object)[completion],
            "attempt": np.array([key.attempt for key in keys])[completion],
            "sample_index": np.array([key.sample_index for key in keys])[completion],
            "position": (found["place"] - (lengths.cumsum(0) - lengths)[found["completion"]]).numpy(),
            "token_id": found["token_id"].numpy(),
            "text": texts[places],
            "old_logprob": found["old_logprob"].numpy(),
            "logprob": found["logprob"].numpy(),
            "ratio": ratio.numpy(),
            "advantage": found["advantage"].numpy(),
            "clipped": _bounds(arm, ratio, found["advantage"]),
            "weight": found["weight"].numpy(),
        }
    )


def _bounds(arm: Replayed, ratio: Tensor, advantages: Tensor) -> np.ndarray:
    bounds = objective(arm.config.algorithm, arm.config.task.max_response_tokens).bounds
    low, high, dual = clipped_tokens(ratio, advantages, bounds)
    return np.select([low.numpy(), high.numpy(), dual.numpy()], ["low", "high", "dual"], NOT_CLIPPED)


def summary_row(arm: Replayed, recorded: Replayed, tokens: pd.DataFrame) -> dict[str, float | int | None]:
    """One arm compared with the recorded one. Columns: docs/replay.md."""
    mine, theirs = _trained(arm), _trained(recorded)
    shared = mine.keys() & theirs.keys()
    changes = [abs((mine[key].advantage or 0.0) - (theirs[key].advantage or 0.0)) for key in shared]
    before = {c.sample.key: c.reward_shaped for g in recorded.generated for c in g.completions}
    rewards = [c.reward_shaped != before.get(c.sample.key) for g in arm.generated for c in g.completions]
    ours, others = _groups(arm), _groups(recorded)
    clipped = tokens["clipped"] if len(tokens) else pd.Series(dtype=object)
    return {
        "groups_kept": len(arm.accepted),
        "groups_in": len(ours - others),
        "groups_out": len(others - ours),
        "rewards_changed": sum(rewards),
        "loss_tokens": 0 if arm.batch is None else int(arm.batch.loss_tokens.sum()),
        "advantage_change_mean": fmean(changes) if changes else None,
        "advantage_change_max": max(changes, default=None),
        "loss": arm.metrics["loss/policy"],
        "grad_norm": arm.metrics["optim/grad_norm"],
        "cosine_first": cosine(arm.log.first, recorded.log.first),
        "cosine_step": cosine(arm.log.summed, recorded.log.summed),
        "updates": len(arm.log.losses),
        **{f"clipped_{bound}": int((clipped == bound).sum()) for bound in ("low", "high", "dual")},
    }


def cosine(first: Sequence[Tensor] | None, second: Sequence[Tensor] | None) -> float | None:
    """The cosine of two gradients, in float64; None if one of them is missing or 0."""
    if first is None or second is None:
        return None
    product, squares, others = (
        sum(float(torch.dot(a.double().flatten(), b.double().flatten())) for a, b in zip(x, y, strict=True))
        for x, y in ((first, second), (first, first), (second, second))
    )
    return product / (squares * others) ** 0.5 if squares > 0 and others > 0 else None


def _trained(arm: Replayed) -> dict[SampleKey, Completion]:
    return {c.sample.key: c for group in arm.accepted for c in group.completions}


def _groups(arm: Replayed) -> set[tuple[int, int]]:
    return {(group.step, group.index) for group in arm.accepted}
