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
LONG = ("budget.steps=8", "algorithm.dynamic_sampling.carry_over=finished")


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


def test_every_row_has_the_keys_of_the_first_and_evaluations_begin_and_end_it(whole):
    """Which keys those are: tests/test_docs.py, by the page of the metrics."""
    rows = [json.loads(line) for line in (whole / RUN / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(9))
    for row in rows[1:]:
        assert rows[1].keys() <= row.keys()
    assert {f"eval/four_sums/{key}" for key in ("avg@2", "pass@2", "cons@2")} <= rows[0].keys() & rows[-1].keys()


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


def test_kills_a_ctrl_c_sigterm_and_a_hangup_at_any_moment_lose_no_row_and_change_no_bit(whole, tmp_path):
    """`make sweeps` does the same a hundred times."""
    run_s = float((whole / "processor_s.txt").read_text())
    numbers = [signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    cases = signal_sweep(
        tmp_path, whole, (*SMALL, *LONG), [int(n) for n in numbers], seed=int(time.time()), run_s=0.7 * run_s
    )
    assert len(cases) == 5
    assert {case.outcome for case in cases} == {"resumed, equal"}, cases


def test_a_run_whose_folder_is_moved_stops_by_name_and_goes_on_where_it_was(whole, tmp_path):
    (case,) = folder_case(tmp_path / "case", whole, (*SMALL, *LONG), "moved")
    assert case.outcome == "ended by name; resumed, equal"


def test_a_multirun_over_a_switch_and_seeds_finishes_every_run(tmp_path, cache):
    done = run_cli(
        "-m", "+experiment=ablate_clip_higher", "seed=0,1", "task=four_sums", "policy=micro", "reward=number",
        "algorithm.overlong.cache_tokens=5", "algorithm.num_prompts=4", "algorithm.samples_per_prompt=4",
        "algorithm.minibatch_prompts=4", "budget.steps=2", "evaluation.samples=1", "logger.progress=none",
        "study.underpowered=true", "study.workers=2", "study.metric=rollout/accuracy", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 cells at a time" in done.stdout
    assert "[4/4] dapo" in done.stdout
    assert "Decided: 0 of 1" in done.stdout
    assert "report: runs/ablate_clip_higher/report/report.html" in done.stdout
    study = tmp_path / "runs" / "ablate_clip_higher"
    finished = sorted(str(p.parent.relative_to(study)) for p in study.rglob("DONE.json"))
    assert finished == sorted(f"{arm}/seed_{seed}" for arm in ("dapo", "dapo-clip_higher") for seed in (0, 1))
    for arm, expected in (("dapo", True), ("dapo-clip_higher", False)):
        config = yaml.safe_load((study / arm / "seed_1" / "config.yaml").read_text())
        assert config["algorithm"]["techniques"]["clip_higher"] is expected


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
