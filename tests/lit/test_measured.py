"""What a row measures of the updates and of memory: which epoch, and which device."""

import pytest
import torch
from small_runs import Run, rows

from dapo_lit.objective.losses import importance_ratio


class Tokens:
    """Log-ratios, old log-probs and advantages of every token, by epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[tuple[torch.Tensor, ...]]] = {}

    def micro_batch(self, epoch, micro, logprobs, old, advantages, weights):
        found = (x.detach().clone() for x in (logprobs, old, advantages))
        self.epochs.setdefault(epoch, []).append(tuple(found))

    def update(self, loss, gradients):
        pass

    def metrics(self, epoch: int) -> dict[str, float]:
        logprobs, old, advantages = (torch.cat(x) for x in zip(*self.epochs[epoch], strict=True))
        ratio = importance_ratio(logprobs, old)
        return {
            "clip/low_frac": float(((advantages < 0) & (ratio < 0.8)).double().mean()),
            "clip/high_frac": float(((advantages > 0) & (ratio > 1.28)).double().mean()),
            "clip/symmetric_high_frac": float(((advantages > 0) & (ratio > 1.2)).double().mean()),
            "policy/ratio_max": float(ratio.max()),
            "policy/kl_old": float((ratio - 1 - ratio.log()).double().mean()),
        }


def last_step(compose, epochs: int) -> tuple[dict, Tokens]:
    """The row of a step that moves the policy far, and its tokens."""
    run = Run(
        compose(
            f"algorithm.epochs={epochs}", "budget.steps=1", "algorithm.optimizer.lr=0.02",
            "algorithm.optimizer.warmup_steps=0", "algorithm.num_prompts=8",
        )
    )  # fmt: skip
    run.module.observer = tokens = Tokens()
    run.fit()
    return rows(run.folder.path)[-1], tokens


CLIP = ("clip/low_frac", "clip/high_frac", "clip/symmetric_high_frac")


def test_the_diagnostics_are_of_the_first_epoch_and_three_clip_metrics_of_the_last(compose):
    row, tokens = last_step(compose, epochs=3)
    first, last = tokens.metrics(0), tokens.metrics(2)
    assert {key: row[key] for key in first} == pytest.approx(first, rel=1e-4, abs=1e-9)
    for key in CLIP:
        assert row[f"{key}_last_epoch"] == pytest.approx(last[key])
        assert last[key] > first[key]
