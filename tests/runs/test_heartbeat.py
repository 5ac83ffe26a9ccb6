"""A run's sign of life: during whatever it does, and not a moment longer."""

import os
import time
from pathlib import Path

import pytest

import dapo_lit.lit.datamodule
from dapo_lit.run_files import HEARTBEAT
from dapo_lit.runs.heartbeat import beating
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


def test_the_heart_beats_while_the_run_is_busy_and_stops_with_it(tmp_path):
    with beating(tmp_path, interval_s=0.02):
        age_it(tmp_path / HEARTBEAT)
        assert beats_again(tmp_path / HEARTBEAT)
    age_it(tmp_path / HEARTBEAT)
    assert not beats_again(tmp_path / HEARTBEAT, within_s=0.2)


def test_a_folder_that_has_gone_does_not_end_the_run(tmp_path):
    with beating(tmp_path / "gone", interval_s=0.01):
        time.sleep(0.05)


def test_a_training_beats_from_its_first_evaluation_on(compose, monkeypatch, tmp_path):
    seen = []

    def evaluations(self, final):
        seen.extend(tmp_path.rglob(HEARTBEAT))
        raise KeyboardInterrupt

    monkeypatch.setattr(dapo_lit.lit.datamodule.RolloutDataModule, "evaluations", evaluations)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(compose(), [])
    assert [file.parent.name for file in seen] == ["seed_0"]
