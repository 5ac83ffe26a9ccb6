"""What a row measures: the updates, carried groups left out, and whether the engine samples from old weights."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from compiling import compiling
from small_runs import Run, rows

from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.lit import datamodule
from dapo_lit.lit.callbacks import RECOMPILED, mismatch_alarm
from dapo_lit.lit.module import DAPOModule
from dapo_lit.objective.losses import importance_ratio
from dapo_lit.policy import wrap
from dapo_lit.policy.attention import NAME, AttentionInterface, packed_attention
from dapo_lit.step.batch import RolloutStep
from dapo_lit.step.scoring import score
from dapo_lit.switches.algorithm import collection_rules


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


def test_a_row_leaves_out_what_was_carried_into_its_step(compose, monkeypatch):
    def many_ahead(algorithm):
        return replace(collection_rules(algorithm), margin=6.0, window=8.0)

    monkeypatch.setattr(datamodule, "collection_rules", many_ahead)
    run = Run(compose("algorithm.dynamic_sampling.carry_over=all", "budget.steps=6", "logger.rollouts_every=1"))
    run.fit()
    carried_in = 0
    for row in rows(run.folder.path)[1:]:
        file = run.folder.path / "rollouts" / f"step_{row['step']:06d}.parquet"
        rollouts = pd.read_parquet(file)
        counted = rollouts[rollouts.examined & (rollouts.submitted_step == row["step"])]
        carried_in += rollouts.examined.sum() - len(counted)
        for key, column in (("rollout/accuracy", "correct"), ("reward/correctness", "reward")):
            assert row[key] == (pytest.approx(counted[column].mean()) if len(counted) else None)
    assert carried_in > 0


FAST = ("budget.steps=3", "algorithm.optimizer.lr=0.01", "algorithm.optimizer.warmup_steps=0")


@pytest.mark.parametrize("old_logprobs", ["recompute", "rollout"])
def test_a_stale_sync_raises_the_alarm_in_every_step_after_the_first(compose, monkeypatch, capsys, old_logprobs):
    original = TorchEngine.sync_weights

    def stale(self, named_tensors, version):
        if version == 0:
            original(self, named_tensors, version)
        else:
            self.version = version  # claims to have the new weights and keeps the old

    monkeypatch.setattr(TorchEngine, "sync_weights", stale)
    run = Run(compose(*FAST, f"algorithm.old_logprobs={old_logprobs}"))
    run.fit()
    said = [line for line in capsys.readouterr().out.splitlines() if "mismatch/kl is" in line]
    kl = [row["mismatch/kl"] for row in rows(run.folder.path)[1:]]
    assert kl[0] < 1e-9
    assert min(kl[1:]) > 1e-3
    assert len(said) == 2
    for step, line in enumerate(said, start=2):
        assert line.startswith(f"warning: step {step}: mismatch/kl is {kl[step - 1]:.3g} nats")
        assert "above 0.0001" in line
        assert "stale or broken" in line


def test_old_log_probs_of_the_sampler_are_those_of_scoring_in_every_step_of_a_run(compose, monkeypatch):
    make_updates, apart = DAPOModule.make_updates, []

    def compared(self: DAPOModule, batch: RolloutStep) -> None:
        assert batch.tokens is not None
        used, _ = score(self.policy_forward, self.objective, batch.tokens)
        assert torch.equal(used.old_logprobs, batch.tokens.rollout_logprobs)
        scoring = replace(self.objective, recomputes_old_logprobs=True)
        expected, _ = score(self.policy_forward, scoring, batch.tokens)
        apart.append(float((used.old_logprobs - expected.old_logprobs).abs().max()))
        make_updates(self, batch)

    monkeypatch.setattr(DAPOModule, "make_updates", compared)
    run = Run(compose(*FAST, "algorithm.old_logprobs=rollout", "rollout.temperature=0.7"))
    before = [weight.detach().clone() for weight in run.parts.policy.parameters()]
    run.fit()
    assert len(apart) == 3
    assert max(apart) < 1e-5  # nats; rounding of float32
    # Weights that stood still would hide a sampler that keeps those of the first step.
    moved = max(
        float((w.detach() - b).abs().max()) for w, b in zip(run.module.policy.parameters(), before, strict=True)
    )
    assert moved > 1e-3


def test_nothing_measured_is_silent_and_a_kl_that_is_no_number_is_not(compose):
    config = compose()
    assert mismatch_alarm(config, 3, 1e-4) is None
    assert "above 0.0001" in (mismatch_alarm(config, 3, 1.01e-4) or "")
    assert mismatch_alarm(compose("policy.dtype=bfloat16"), 3, 1e-2) is None
    bf16 = ("trainer.sharding.dtype=bfloat16", "trainer.accelerator=cpu")
    assert mismatch_alarm(compose("trainer=fsdp", *bf16), 3, 1e-3) is None  # float32 shards, bfloat16 products
    assert mismatch_alarm(compose(*bf16), 3, 1e-3) is None  # one process computes in 16 bits as well
    on_gpu = ("rollout=vllm", "trainer.accelerator=gpu")
    assert mismatch_alarm(compose(*on_gpu), 3, 1e-3) is None  # a bfloat16 engine of a float32 trainer
    assert "above 0.0001" in (mismatch_alarm(compose(*on_gpu, "rollout.vllm.dtype=float32"), 3, 1e-3) or "")
    assert mismatch_alarm(config, 3, None) is None
    assert "step 3" in (mismatch_alarm(config, 3, math.nan) or "")


@pytest.fixture
def compiler():
    with compiling("eager"):  # traces, which is what is counted; generates no code
        yield
    AttentionInterface.register(NAME, packed_attention)


COMPILED = ("trainer.compile=true", "budget.steps=3", "evaluation.every=0", "trainer.micro_batch_tokens=96")


def test_steps_of_other_lengths_and_batches_compile_nothing_after_the_first(compose, compiler):
    run = Run(compose(*COMPILED))
    run.fit()
    found = rows(run.folder.path)[1:]
    assert len({row["batch/length_mean"] for row in found}) == 3
    assert wrap.compiled_graphs() > 2
    assert [row["perf/recompiles"] for row in found] == [0, 0, 0]


def test_graphs_that_a_later_step_compiles_again_are_counted_and_warned_of(compose, compiler, monkeypatch, capsys):
    monkeypatch.setattr(wrap, "leave_uncompiled", lambda: None)  # so that the attention is compiled for each layout
    run = Run(compose(*COMPILED, "budget.steps=2"))
    run.fit()
    first, *later = [row["perf/recompiles"] for row in rows(run.folder.path)[1:]]
    assert first == 0
    assert max(later) > 0
    said = [RECOMPILED.format(step=step, graphs=again) for step, again in enumerate(later, start=2) if again]
    assert [line.removeprefix("warning: ") for line in capsys.readouterr().out.splitlines() if "again." in line] == said
