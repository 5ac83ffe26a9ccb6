"""The command as a user runs it: ends, resumes after a kill, stops on request, and says what is wrong."""

import json
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command_line import SMALL, run_cli
from disturbances import folder_case, signal_sweep, uninterrupted
from small_runs import untimed

RUN = Path("runs") / "four_sums" / "dapo" / "seed_0"
LONG = ("budget.steps=8", "algorithm.dynamic_sampling.carry_over=finished", "preflight=false")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    printed, run_s = uninterrupted(folder, (*SMALL, *LONG))
    (folder / "stdout.txt").write_text(printed)
    (folder / "processor_s.txt").write_text(str(run_s))
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
    assert json.loads((whole / RUN / "DONE.json").read_text())["status"] == "finished"
    run = json.loads((whole / RUN / "run.json").read_text())
    assert (run["arm"], run["seed"], run["study"]) == ("dapo", 0, "four_sums")
    assert re.fullmatch("[0-9a-f]{16}", run["base_weights"])
    assert yaml.safe_load((whole / RUN / "config.yaml").read_text())["algorithm"]["clip"]["high"] == 0.28


def test_rollouts_hold_every_completion_with_what_became_of_it(whole):
    rollouts = pd.read_parquet(whole / RUN / "rollouts" / "step_000003.parquet")
    row = json.loads((whole / RUN / "metrics.jsonl").read_text().splitlines()[3])
    counted = rollouts[rollouts.examined & (rollouts.submitted_step == 3)]
    assert counted.correct.mean() == pytest.approx(row["rollout/accuracy"])
    assert rollouts[rollouts.kept].examined.all()
    assert rollouts.groupby(["submitted_step", "group_index"]).size().eq(4).all()
    assert rollouts[rollouts.kept].advantage.notna().all()
    assert rollouts[~rollouts.kept].advantage.isna().all()
    assert (rollouts.rollout_logprobs.map(len) == rollouts.response_ids.map(len)).all()


def test_a_kill_and_sigterm_at_any_moment_lose_no_row_and_change_no_bit(whole, tmp_path):
    """`make sweeps` does so a hundred times, and hangs up; Ctrl-C at chosen moments: tests/lit/test_exceptions.py."""
    run_s = float((whole / "processor_s.txt").read_text())
    numbers = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]
    cases = signal_sweep(
        tmp_path, whole, (*SMALL, *LONG), [int(n) for n in numbers], seed=int(time.time()), run_s=0.7 * run_s
    )
    assert len(cases) == 3
    assert {case.outcome for case in cases} == {"resumed, equal"}, cases


def test_a_run_whose_folder_is_moved_stops_by_name_and_goes_on_where_it_was(whole, tmp_path):
    (case,) = folder_case(tmp_path / "case", whole, (*SMALL, *LONG), "moved")
    assert case.outcome == "ended by name; resumed, equal"


def test_wandb_offline_gets_every_key_and_keeps_its_id_over_a_resume(tmp_path, cache):
    arguments = (*SMALL, "logger=wandb", "logger.wandb.mode=offline", "logger.rollouts_every=1")
    arguments += (
        "logger.wandb.tags=[tag_a,tag_b]",
        "logger.wandb.notes=noted here",
        "logger.wandb.name=named",
        "+logger.wandb.group=grouped",
    )
    assert run_cli(*arguments, "budget.steps=2", cwd=tmp_path).returncode == 0
    first = json.loads((tmp_path / RUN / "run.json").read_text())["wandb_id"]
    done = run_cli(*arguments, "budget.steps=4", "resume=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in untimed(tmp_path / RUN)] == [0, 1, 2, 3, 4]  # a larger budget goes on
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
    assert len(tables) == 2


def test_an_installed_wheel_finds_its_configs_from_another_folder(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, cwd=Path(__file__).parent.parent)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from dapo_lit.config import config_folder; "
    code += "import runpy; print(config_folder()); runpy.run_module('dapo_lit.train', run_name='__main__')"
    command = [sys.executable, "-c", code, "--cfg", "job"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert str(site) in done.stdout, done.stderr
    assert "techniques" in done.stdout, done.stderr
