"""What a run's folder promises: nothing lost, nothing half-written, nothing resumed under another config."""

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest
import torch
from command_line import SMALL, run_cli

from ablations.files.record import read_record
from ablations.files.tables import write_table
from dapo_lit.config import ConfigError
from dapo_lit.runs.checkpoint_files import write_checkpoint
from dapo_lit.runs.run_folder import check_room, hardware, open_run


def test_a_disk_without_room_for_a_checkpoint_is_named_before_anything_moves(tmp_path):
    place = tmp_path / "runs" / "none" / "yet"
    check_room(place, 0)
    with pytest.raises(ConfigError, match="runs_dir"):
        check_room(place, 10**18)


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_checkpoint_that_could_not_be_written_leaves_no_draft(tmp_path):
    """It would keep the disk full, so that run.json could not say what happened."""

    def half(draft):
        draft.write_bytes(b"x" * 1000)
        no_space()

    def half_a_folder(draft):
        draft.mkdir()
        half(draft / "__0_0.distcp")

    for write in (half, half_a_folder):
        with pytest.raises(OSError, match="No space left on device"):
            write_checkpoint(tmp_path / "step_000001.ckpt", write)
        assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_is_named_and_the_run_goes_on_once_there_is_room(tmp_path):
    """A real one: tmpfs of 4 MB, which holds three checkpoints and no fourth."""
    runs = tmp_path / "runs"
    runs.mkdir()
    options = ("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(runs))
    if shutil.which("mount") is None or subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (runs / "ballast").write_bytes(bytes(1_000_000))
        arguments = (*SMALL, "replay.record=[2,3,4,5]")
        done = run_cli(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert "the disk is full" in line
        assert ".ckpt" in line
        run = runs / "four_sums" / "dapo" / "seed_0"
        assert not list(run.rglob("*.part"))
        assert read_record(run)["status"] == "failed"
        assert "No space left on device" in read_record(run)["error"]
        subprocess.run(["mount", "-o", "remount,size=40m", str(runs)], check=True)
        again = run_cli(*arguments, "resume=true", cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert read_record(run)["status"] == "finished"
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=False)


def test_a_full_disk_is_reported_with_the_file(compose, tmp_path, monkeypatch):
    folder = open_run(compose(), [], "dapo")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match=r"No space left on device: '.*seed_0/metrics.jsonl'"):
        folder.append_row({"step": 1})
    with pytest.raises(OSError, match=r"No space left on device: '.*seed_0/run.json'"):
        folder.write_run(status="failed")
    with pytest.raises(OSError, match=r"No space left on device: '.*step_000001.ckpt'"):
        write_checkpoint(tmp_path / "step_000001.ckpt", no_space)
    monkeypatch.setattr(pyarrow.parquet, "write_table", no_space)
    with pytest.raises(OSError, match=r"No space left on device: '.*step_000001.parquet'"):
        write_table(tmp_path / "step_000001.parquet", pd.DataFrame())


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="reads Linux' description of the processor")
def test_a_run_records_what_rounding_depends_on() -> None:
    words = hardware()["processor"]
    assert re.search(r", family \d+, model \d+, stepping \d+, [A-Z0-9]+$", words), words
    assert words.endswith(torch.backends.cpu.get_cpu_capability())
