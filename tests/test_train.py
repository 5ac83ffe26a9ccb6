"""The command as a user runs it: ends, resumes after a kill, stops on request, and says what is wrong."""

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command_line import SMALL, Command, run_cli
from small_runs import same_run, untimed

RUN = Path("runs") / "four_sums" / "dapo" / "seed_0"
LONG = ("budget.steps=8", "algorithm.dynamic_sampling.carry_over=finished", "preflight=false")

SIGNALS, TURNS = [signal.SIGKILL, signal.SIGTERM], 1
if "DAPO_LIT_MATRIX" in os.environ:  # `make sweeps`
    SIGNALS, TURNS = [*SIGNALS, signal.SIGINT, signal.SIGHUP], 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    done = run_cli(*SMALL, *LONG, cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_a_run_that_learned_nothing_is_recorded_and_ends_with_an_error(tmp_path, cache):
    unreadable = "reward.extraction=boxed"  # this vocabulary has no box: all responses are wrong
    result = run_cli(*SMALL, "budget.steps=2", unreadable, "preflight=false", cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "of 2 steps" in result.stderr
    assert "eval/four_sums/step_000002.parquet: '" in result.stderr
    assert (tmp_path / RUN / "DONE.json").is_file()
    assert (tmp_path / RUN / "run.html").is_file()


def test_a_run_ends_with_a_table_the_path_and_a_page(whole):
    printed = (whole / "stdout.txt").read_text()
    assert "avg@2, 4 held-out" in printed
    assert str(RUN) in printed
    assert f"page    {RUN / 'run.html'}" in printed
    assert "play  " not in printed  # it kept no training state
    assert json.loads((whole / RUN / "DONE.json").read_text())["status"] == "finished"
    run = json.loads((whole / RUN / "run.json").read_text())
    assert (run["arm"], run["seed"], run["study"]) == ("dapo", 0, "four_sums")
    assert re.fullmatch("[0-9a-f]{16}", run["base_weights"])
    assert yaml.safe_load((whole / RUN / "config.yaml").read_text())["algorithm"]["clip"]["high"] == 0.28


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_at_any_moment_loses_no_row_and_changes_no_bit(whole, tmp_path, number):
    """Ctrl-C at chosen moments: tests/lit/test_exceptions.py."""
    for turn in range(TURNS):
        folder, metrics = tmp_path / str(turn), tmp_path / str(turn) / RUN / "metrics.jsonl"
        folder.mkdir()
        process, after = Command(*SMALL, *LONG, cwd=folder), random.randrange(8)
        while process.poll() is None and after > (metrics.read_bytes().count(b"\n") if metrics.is_file() else 0):
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(number)
        ended = process.wait()
        assert number not in (signal.SIGTERM, signal.SIGHUP) or "Traceback" not in ended.stderr, ended.stderr
        before = metrics.read_bytes() if metrics.is_file() else b""
        done = run_cli(*SMALL, *LONG, "resume=auto", cwd=folder)
        assert done.returncode == 0, (after, done.stderr)
        assert metrics.read_bytes().startswith(before[: before.rfind(b"\n") + 1]), after
        assert same_run(folder / RUN, whole / RUN), after


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["logger=wandb"], "logger=wandb"),  # no login
        (["logger=wandb", "logger.wandb.mode=offline", "+logger.wandb.grp=x"], "logger.wandb.grp"),
        (["logger=wandb", "logger.wandb.mode=sometimes"], "logger=wandb"),
    ],
)
def test_a_display_that_cannot_work_ends_the_start_in_one_line_and_moves_no_run(
    tmp_path, cache, monkeypatch, arguments, named
):
    older = tmp_path / RUN
    older.mkdir(parents=True)
    (older / "run.json").write_text("{}")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    done = run_cli(*SMALL, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""  # before any other check
    assert named in done.stderr
    assert [file.name for file in older.parent.iterdir()] == ["seed_0"]


def test_wandb_offline_gets_every_key_and_keeps_its_id_over_a_resume(tmp_path, cache):
    arguments = (
        *SMALL, "logger=wandb", "logger.wandb.mode=offline", "logger.rollouts_every=1", "preflight=false",
        "logger.wandb.tags=[tag_a,tag_b]", "logger.wandb.notes=noted here", "logger.wandb.name=named",
        "+logger.wandb.group=grouped",
    )  # fmt: skip
    assert run_cli(*arguments, "budget.steps=1", cwd=tmp_path).returncode == 0
    first = json.loads((tmp_path / RUN / "run.json").read_text())["wandb_id"]
    done = run_cli(*arguments, "budget.steps=2", "resume=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in untimed(tmp_path / RUN)] == [0, 1, 2]  # a larger budget goes on
    assert json.loads((tmp_path / RUN / "run.json").read_text())["wandb_id"] == first
    logs = list((tmp_path / RUN).rglob(f"run-{first}.wandb"))
    assert len(logs) == 2
    content = b"".join(log.read_bytes() for log in logs)
    for key in (*untimed(tmp_path / RUN)[-1], "completions"):
        assert key.encode() in content, key
    assert all(text in content for text in (b"named", b"grouped", b"tag_a", b"tag_b", b"noted here"))
    sync = re.search(r"^wandb   offline: wandb sync (\S+)$", done.stdout, re.MULTILINE)
    assert sync
    tables = [json.loads(file.read_text()) for file in (tmp_path / sync[1]).rglob("completions_*.table.json")]
    for table in tables:
        step = table["data"][0][table["columns"].index("step")]
        kept = pd.read_parquet(tmp_path / RUN / "rollouts" / f"step_{step:06d}.parquet")
        for column in ("prompt", "response", "correct", "reward", "length_penalty", "reward_shaped", "advantage"):
            logged = pd.Series([row[table["columns"].index(column)] for row in table["data"]], dtype=kept[column].dtype)
            pd.testing.assert_series_equal(logged, kept[column], check_names=False)
    assert len(tables) == 1
