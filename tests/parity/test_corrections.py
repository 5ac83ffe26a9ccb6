"""Corrections for the engine's distribution, by cell {token, sequence, geometric mean} x {weight, mask, both}.

verl's functions are called; TRL's lines, which are in the middle of a method, are taken from its source and run; what
SkyRL's functions gave is in skyrl_corrections.json. pi_old is the batch's `logprobs` here, and mu its `old_logprobs`.
"""

import inspect
import json
import math
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from batches import DRIFTED, EXTREME, FAR, MILD, SOME_MASKED, SPIKE, Batch
from comparison import Result, compare, difference, record
from torch import Tensor
from trl import GRPOTrainer
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask

from dapo_lit.objective.correction import CORRECTIONS

# float64: in float32 the peers' sums over a completion of 1,024 tokens are off by 1e-6, ours are taken in float64.
BATCHES = [batch.to(torch.float64) for batch in (*MILD, SOME_MASKED, FAR, EXTREME, SPIKE, DRIFTED)]
BY_TOKEN = ("tis", "icepop")
SKYRL = json.loads(Path(__file__).with_name("skyrl_corrections.json").read_text())


def weights(kind: str, old: Tensor, rollout: Tensor, mask: Tensor, band: dict[str, float]) -> Tensor:
    """Ours, [B, T], 0 in the padding."""
    completions = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    of_batch = {} if kind in BY_TOKEN else {"completions": completions}
    found = torch.zeros_like(old)
    found[mask] = CORRECTIONS[kind](old[mask], rollout[mask], **of_batch, **band)
    return found


def ours(kind: str, batch: Batch, **band: float) -> Result:
    return weights(kind, batch.logprobs, batch.old_logprobs, batch.response_mask, band), None


def log_ratio(batch: Batch) -> Tensor:
    return (batch.logprobs - batch.old_logprobs) * batch.response_mask


def shown(band: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in band.items())


@pytest.mark.parametrize(
    ("kind", "level", "threshold", "band"),
    [
        ("tis", "token", 2.0, {"cap": 2.0}),
        ("tis", "token", 5.0, {"cap": 5.0}),
        ("icepop", "token", "0.5_5.0", {"low": 0.5, "high": 5.0}),
        ("weigh_sequences", "sequence", 2.0, {"high": 2.0}),
        ("sequence_mask", "sequence", "0.5_2.0", {"low": 0.5, "high": 2.0}),
    ],
)
def test_weights_of_verl(kind: str, level: str, threshold: str | float, band: dict[str, float]) -> None:
    def theirs(batch: Batch) -> Result:
        mask = batch.response_mask.float()
        return compute_rollout_correction_weights(log_ratio(batch), mask, level, threshold)[0], None

    peer = f"verl `compute_rollout_correction_weights({level}, {threshold})`"
    # Where no weight is left, a metric of verl's divides by their mean.
    batches = [batch for batch in BATCHES if ours(kind, batch, **band)[0].any()]
    compare(f"correction.{kind}", shown(band), peer, batches, lambda batch: ours(kind, batch, **band), theirs)


@pytest.mark.parametrize(
    ("kind", "option"),
    [("mask_tokens", "token_k1"), ("mask_sequences", "seq_sum_k1"), ("mask_geometric", "seq_mean_k1")],
)
def test_masks_of_verl_whose_bounds_are_of_the_inverse_ratio(kind: str, option: str) -> None:
    def theirs(batch: Batch, low: float, high: float) -> Result:
        mask = batch.response_mask.float()
        return compute_rollout_rejection_mask(log_ratio(batch), mask, option, f"{low}_{high}")[0], None

    def mine(batch: Batch) -> Result:
        return ours(kind, batch, low=0.75, high=1.5)

    peer, inverse = f"verl `compute_rollout_rejection_mask({option})`", (1 / 1.5, 1 / 0.75)
    setting = "low 0.75, high 1.5; theirs 1 / 1.5 and 1 / 0.75"
    compare(f"correction.{kind}", setting, peer, BATCHES, mine, lambda batch: theirs(batch, *inverse))
    same = "low 0.75, high 1.5, theirs too"
    compare(f"correction.{kind}", same, peer, BATCHES[:20], mine, lambda batch: theirs(batch, 0.75, 1.5), differs="V17")


def trls(batch: Batch, mode: str, low: float | None, high: float) -> Result:
    """The lines of `_generate_and_score_completions` between their first and the next block, on our log-probs."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    first = r" +if self\.use_vllm and self\.vllm_importance_sampling_correction:\n +mask = "
    (block,) = re.findall(rf"\n({first}.*?)\n +# Compute the per-token log", source, re.DOTALL)
    names = {
        "self": SimpleNamespace(
            use_vllm=True, vllm_importance_sampling_correction=True, vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=low, vllm_importance_sampling_clip_max=high,
        ),
        "completion_mask": batch.response_mask, "tool_mask": None, "old_per_token_logps": batch.logprobs,
        "sampling_per_token_logps": batch.old_logprobs, "torch": torch, "math": math,
    }  # fmt: skip
    exec(textwrap.dedent(block), names)
    ratio = names["vllm_importance_sampling_ratio"]
    assert isinstance(ratio, Tensor)
    return ratio * batch.response_mask, None


@pytest.mark.parametrize(
    ("kind", "mode", "low", "high"),
    [
        ("tis", "token_truncate", None, 3.0),
        ("icepop", "token_mask", 0.5, 3.0),
        ("weigh_sequences", "sequence_truncate", 0.5, 3.0),
        ("sequence_mask", "sequence_mask", 0.5, 3.0),
    ],
)
def test_the_four_modes_of_trl(kind: str, mode: str, low: float | None, high: float) -> None:
    band = {"cap": high} if low is None else {"low": low, "high": high}
    peer = f"TRL `vllm_importance_sampling_mode={mode}`"
    compare(
        f"correction.{kind}", shown(band), peer, BATCHES, lambda batch: ours(kind, batch, **band),
        lambda batch: trls(batch, mode, low, high),
    )  # fmt: skip


@pytest.mark.parametrize("cell", SKYRL["cells"], ids=lambda cell: cell["function"])
def test_skyrl_by_the_numbers_that_its_functions_gave(cell: dict) -> None:
    old, rollout = (torch.tensor(SKYRL[name]) for name in ("old_logprobs", "rollout_logprobs"))
    mask = torch.arange(old.shape[1]) < torch.tensor(SKYRL["lengths"])[:, None]
    found = weights(cell["kind"], old, rollout, mask, cell["band"])
    theirs = torch.tensor(cell["gave"])
    record(
        f"correction.{cell['kind']}", shown(cell["band"]), f"SkyRL `{cell['function']}`",
        f"{len(mask)} completions of {SKYRL['lengths']} tokens", [difference(found, theirs)],
    )  # fmt: skip
    assert len(theirs.unique()) > 1  # a bound acts
