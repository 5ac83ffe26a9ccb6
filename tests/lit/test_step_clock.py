"""The training thread's time: every second between two rows is in one of their times."""

import time
from pathlib import Path

import pytest
from small_runs import RUN, rows

from dapo_lit.lit import step_clock
from dapo_lit.lit.callbacks import Checkpoints
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.train import train

SLOW_S = 0.3
LEFT_OUT = ("time/tail_s",)


def slowed(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """The method takes SLOW_S longer."""
    method = getattr(owner, name)

    def slowly(self, *given, **named):
        time.sleep(SLOW_S)
        return method(self, *given, **named)

    patch.setattr(owner, name, slowly)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_times_of_a_row_add_up_to_the_clock(compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int):
    """Within 1 %, whatever is slow between the steps: a display, the page, a checkpoint, a callback after the row."""
    slowed(monkeypatch, Loggers, "row")
    slowed(monkeypatch, Loggers, "page")
    slowed(monkeypatch, Checkpoints, "_write_state")
    slowed(monkeypatch, RolloutDataModule, "evaluations")
    slowed(monkeypatch, DAPOModule, "on_train_batch_start")
    slowed(monkeypatch, RolloutDataModule, "metrics")
    at: list[float] = []
    append = RunFolder.append_row

    def noted(self, row):
        at.append(time.perf_counter())
        append(self, row)

    monkeypatch.setattr(RunFolder, "append_row", noted)
    train(
        compose(
            f"runs_dir={tmp_path}", "budget.steps=5", "evaluation.every=2", "trainer.checkpoint_every=2",
            f"rollout.steps_ahead={ahead}", "preflight=false",
        ),
        [],
    )  # fmt: skip
    found = rows(tmp_path / RUN)
    assert len(found) == len(at) == 6
    for row, before, now in zip(found[1:], at, at[1:], strict=False):
        sampled_ahead = ahead and row["step"] > 1
        left_out = {*LEFT_OUT, *(("time/generate_s", "time/verify_s") if sampled_ahead else ())}
        times = {key: value for key, value in row.items() if key.startswith("time/") and key not in left_out}
        assert sum(times.values()) == pytest.approx(now - before, rel=0.01), row["step"]
        assert min(times["time/record_s"], times["time/page_s"], times["time/other_s"]) >= SLOW_S
        assert (times["time/checkpoint_s"] >= SLOW_S) == (row["step"] in (3, 5)), times  # after the rows of 2 and 4
        assert ("time/evaluate_s" in times) == (row["step"] in (2, 4, 5))


def test_a_remainder_is_never_negative():
    """Of several ranks a row has the largest times."""
    clock = step_clock.StepClock()
    assert clock.row_times({"time/train_s": 1000.0})["time/other_s"] == 0.0
