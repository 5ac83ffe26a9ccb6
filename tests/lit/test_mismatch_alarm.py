"""An engine that samples from old weights is reported in the step in which it does."""

import math

import pytest
from small_runs import Run, rows

from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.lit.callbacks import mismatch_alarm

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
        assert line.startswith(f"step {step}: mismatch/kl is {kl[step - 1]:.3g} nats a token, above")
        assert "above 0.0001" in line
        assert "stale or broken" in line


def test_nothing_measured_is_silent_and_a_kl_that_is_no_number_is_not(compose):
    config = compose()
    assert mismatch_alarm(config, 3, 1e-4) is None
    assert "above 0.0001" in (mismatch_alarm(config, 3, 1.01e-4) or "")
    assert mismatch_alarm(compose("policy.dtype=bfloat16"), 3, 1e-2) is None
    bf16 = ("trainer.sharding.dtype=bfloat16", "trainer.accelerator=cpu")
    assert mismatch_alarm(compose("trainer=fsdp", *bf16), 3, 1e-3) is None  # float32 shards, bfloat16 products
    assert mismatch_alarm(compose(*bf16), 3, 1e-3) is None  # one process computes in 16 bits as well
    assert mismatch_alarm(config, 3, None) is None
    assert "step 3" in (mismatch_alarm(config, 3, math.nan) or "")
