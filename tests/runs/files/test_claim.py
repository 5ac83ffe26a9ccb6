"""A run's sign of life: during whatever it does, and not a moment longer."""

import os
import pkgutil
import time
from pathlib import Path

import pytest

import dapo_lit.lit.datamodule
from ablations.errors import HeldError
from ablations.files.claim import check_claim, claimed, write_claim
from ablations.files.layout import HEARTBEAT, METRICS
from dapo_lit.cli.jobs import arm_of
from dapo_lit.runs.run_folder import run_path
from dapo_lit.train import train


def age_it(file: Path) -> None:
    os.utime(file, (0, 0))


def beats_again(file: Path, within_s: float = 2.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if file.stat().st_mtime > 0:
            return True
        time.sleep(0.01)
    return False


def test_a_claim_is_touched_while_the_run_is_busy_and_goes_with_it(tmp_path):
    run = tmp_path / "seed_0"
    with claimed(run, interval_s=0.02):
        age_it(run / HEARTBEAT)
        assert beats_again(run / HEARTBEAT)
    assert not run.exists()


def test_a_claim_that_another_process_took_over_is_neither_touched_nor_taken_back(tmp_path):
    with claimed(tmp_path, interval_s=0.01) as first:
        write_claim(tmp_path, "another")
        age_it(tmp_path / HEARTBEAT)
        assert not beats_again(tmp_path / HEARTBEAT, within_s=0.1)
        with pytest.raises(HeldError):
            check_claim(tmp_path, first)
    assert (tmp_path / HEARTBEAT).exists()


@pytest.mark.parametrize(
    "written",
    [
        "lightning.pytorch.Trainer.save_checkpoint",
        "dapo_lit.runs.rollout_table.write_table",
        "dapo_lit.runs.run_folder.append_row",
    ],
)
def test_a_folder_that_is_moved_at_the_moment_of_a_write_is_not_made_again(compose, monkeypatch, tmp_path, written):
    config = compose("trainer.checkpoint_every=1", "evaluation.every=1", "budget.steps=4", "preflight=false")
    run, write = run_path(config, arm_of(config)), pkgutil.resolve_name(written)

    def moved_first(*arguments, **options):
        if (run / METRICS).is_file() and len((run / METRICS).read_text().splitlines()) == 3:
            run.rename(tmp_path / "moved")
        return write(*arguments, **options)

    monkeypatch.setattr(written, moved_first)
    with pytest.raises(HeldError, match="moved or removed"):
        train(config, [])
    assert (tmp_path / "moved").is_dir()
    assert not run.exists()


def test_a_training_beats_from_its_first_evaluation_on(compose, monkeypatch, tmp_path):
    seen = []

    def evaluations(self, final):
        seen.extend(tmp_path.rglob(HEARTBEAT))
        raise KeyboardInterrupt

    monkeypatch.setattr(dapo_lit.lit.datamodule.RolloutDataModule, "evaluations", evaluations)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(compose(), [])
    assert [file.parent.name for file in seen] == ["seed_0"]
