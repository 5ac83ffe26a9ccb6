"""The metrics of one rollout step: those of its samples, of its updates, and what the whole step took."""

import resource
import sys
from collections.abc import Mapping
from typing import Any

import torch

from dapo_lit.ranks import Ranks
from dapo_lit.step.rollout_step import RolloutStep


def step_row(
    batch: RolloutStep, updates: Mapping[str, Any], seconds: float, device: torch.device, ranks: Ranks
) -> dict[str, Any]:
    """One row, with the largest times and memory over the ranks."""
    row = batch.metrics | dict(updates)
    row |= {
        "time/sync_s": batch.sync_s,
        "perf/tokens_per_s": batch.collected.tokens_generated / seconds,
        "memory/peak_gb": peak_memory_gb(device),
    }
    return row | _slowest(row, ranks)


def _slowest(row: Mapping[str, Any], ranks: Ranks) -> dict[str, float]:
    """The largest times and memory over the ranks, which wait for the slowest."""
    if ranks.size == 1:
        return {}
    keys = [key for key in sorted(row) if key.startswith(("time/", "memory/"))]
    largest = ranks.stack(torch.tensor([row[key] for key in keys], dtype=torch.float64)).amax(0)
    return dict(zip(keys, largest.tolist(), strict=True))


def peak_memory_gb(device: torch.device) -> float:
    """Most memory allocated on a CUDA device since the last call; elsewhere this process's largest resident memory."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
