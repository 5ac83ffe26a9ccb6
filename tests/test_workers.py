"""Cells side by side: a line a cell, and no cell lost without a word."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ablations.files.metrics_file import last_step
from ablations.screen import StatusLine
from dapo_lit.cli import workers as module
from dapo_lit.cli.workers import FAILED_SILENTLY, Cell, in_child, run_cells, time_left

CELLS = [Cell(arm, seed) for seed in range(3) for arm in ("a", "b")]


def test_every_cell_runs_once_and_failed_and_lost_ones_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(cell: Cell) -> int:
        (tmp_path / f"{cell.arm}{cell.seed}").touch(exist_ok=False)
        os.write(1, f"inside {cell}\n".encode())  # pytest replaces sys.stdout
        if cell == Cell("b", 1):
            os._exit(9)  # killed
        return 2 if cell == Cell("b", 0) else 0

    assert run_cells(CELLS, run, 2, tmp_path / "logs") == 2
    printed = capsys.readouterr()
    assert {f"{c.arm}{c.seed}" for c in CELLS} == {file.name for file in tmp_path.iterdir()} - {"logs"}
    assert "] b/seed_0: FAILED (see " in printed.out
    assert "] b/seed_1: FAILED (see " in printed.out
    assert "inside" not in printed.out
    assert "inside a/seed_2" in "".join(file.read_text() for file in (tmp_path / "logs").iterdir())


def test_a_study_says_how_far_its_cells_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of what was to do when it started: half of each cell was done by then, half of the rest is of those that run."""
    told: list[tuple[float, float, str]] = []
    monkeypatch.setattr(StatusLine, "FIRST_S", 0.0)
    monkeypatch.setattr(StatusLine, "enabled", True)
    monkeypatch.setattr(StatusLine, "update", lambda self, *state: told.append(state))

    def run(cell: Cell) -> int:
        time.sleep(0.5)
        return 0

    asked = list[Cell]()

    def share_done(cell: Cell) -> float:
        asked.append(cell)
        return 0.5 if asked.count(cell) == 1 else 0.75

    run_cells(CELLS[:4], run, 2, tmp_path, share_done)
    assert told[0] == (0.5, 2.0, "0 of 4 cells done, 2 running")
    assert (1.5, 2.0, "2 of 4 cells done, 2 running") in told


def test_what_was_done_before_a_command_took_none_of_its_time():
    """Of ten cells eight were done; after a minute one of the other two is."""
    assert time_left(60.0, worked=1.0, to_do=2.0) == 60.0
    assert time_left(60.0, worked=0.0, to_do=2.0) is None


def test_the_last_step_of_a_run_is_that_of_its_last_whole_row(tmp_path: Path):
    assert last_step(tmp_path) is None
    row = '{"step": %d, "x": "' + "long " * 100 + '"}\n'
    (tmp_path / "metrics.jsonl").write_text("".join(row % step for step in range(300)) + '{"step": 300, "x"')
    assert last_step(tmp_path) == 299


def test_a_signal_while_workers_are_started_reaches_them_and_ends_the_command_with_code_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before, start = signal.getsignal(signal.SIGTERM), module.FORK.Process.start

    def stop() -> None:
        while not any(tmp_path.glob("started_*")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    def slowly(process) -> None:
        start(process)
        time.sleep(0.5)

    def run(cell: Cell) -> int:
        (tmp_path / f"started_{cell.seed}").touch()
        time.sleep(5)
        return 0

    monkeypatch.setattr(module.FORK.Process, "start", slowly)
    threading.Thread(target=stop).start()
    with pytest.raises(SystemExit) as caught:
        run_cells(CELLS, run, 2, tmp_path)
    assert caught.value.code == 0
    assert len([*tmp_path.glob("started_*")]) <= 2, "a worker went on with the next seed"
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_of_the_parent_alone_reaches_the_cells_counts_once_and_ends_the_command_with_code_130(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def interrupt() -> None:
        while len([*tmp_path.glob("started_*")]) < 2:
            time.sleep(0.05)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    def run(cell: Cell) -> int:
        (tmp_path / f"started_{cell.arm}{cell.seed}").touch()
        try:
            time.sleep(60)
        finally:
            time.sleep(1.5)  # the second one comes while it saves
            (tmp_path / f"saved_{cell.arm}{cell.seed}").touch()
        return 0

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in this process may have left its own
    threading.Thread(target=interrupt).start()
    begun = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        run_cells(CELLS, run, 2, tmp_path)
    assert caught.value.code == 130
    assert time.monotonic() - begun < 30
    assert len([*tmp_path.glob("saved_*")]) == len([*tmp_path.glob("started_*")]) == 2
    printed = capsys.readouterr()
    assert printed.out.count(": stopped in") == 2
    assert printed.err == "stopped by Ctrl-C; the cells kept their checkpoints, and the same command continues\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_the_checks_before_a_study_in_both_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def checks() -> int:
        os.write(started, str(os.getpid()).encode())
        time.sleep(60)
        return 0

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in this process may have left its own
    pid, started = os.pipe()
    interrupt = threading.Thread(target=lambda: (os.read(pid, 9), os.kill(os.getpid(), signal.SIGINT)))
    interrupt.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_child(checks)
    assert time.monotonic() - begun < 30
    assert in_child(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60) or 0) == 128 + signal.SIGINT
    assert in_child(lambda: os.kill(os.getpid(), signal.SIGKILL) or time.sleep(60) or 0) == FAILED_SILENTLY
    assert capfd.readouterr().err == ""
