"""Run folders read as they are on disk: torn, doubled, packed, half finished or not runs at all."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from shipped import design
from synthetic_runs import write_run, write_study

from dapo_lit.report import main as report
from dapo_lit.run_files import metrics_line
from dapo_lit.status import main as status
from dapo_lit.study.designs import Arm
from dapo_lit.study.read.packed_cells import pack, packed_config
from dapo_lit.study.read.progress import progress
from dapo_lit.study.read.registration import Plan, register
from dapo_lit.study.read.runs import StudyError, load, read_run
from dapo_lit.techniques import DAPO, NAIVE_GRPO


def test_a_study_is_read_with_its_arms_in_the_order_of_the_design(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "add_one_in", seeds=(1, 0), steps=4, every=2)
    runs = load(folder)
    assert runs.arms[:3] == ("naive_grpo", "naive_grpo+overlong_filtering", "naive_grpo+clip_higher")
    assert runs.seeds == (0, 1)
    frame = runs.frame()
    assert list(frame.columns[:4]) == ["study", "arm", "seed", "step"]
    assert len(frame) == len(design("add_one_in").arms) * 2 * 5
    assert runs.missing() == {}


def test_a_single_run_folder_can_be_loaded(tmp_path: Path) -> None:
    runs = load(write_run(tmp_path, steps=2, every=1))
    assert [run.name for run in runs] == ["dapo/seed_0"]


def test_replaced_runs_are_passed_over(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=2, every=1)
    path.rename(path.with_name("seed_0.replaced_1"))
    write_run(tmp_path, steps=4, every=2)
    runs = load(tmp_path)
    assert [len(run.metrics) for run in runs] == [5]


def test_rows_that_a_resume_went_back_behind_are_of_a_policy_that_is_gone(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=4, every=2)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(metrics_line({"step": 3, "rollout/accuracy": 0.125}))
    run = read_run(path)
    assert run.metrics.loc[3, "rollout/accuracy"] == 0.125
    assert list(run.metrics.index) == [0, 1, 2, 3]
    assert "2 rows left out: a resume went on from a step before" in run.faults


def test_a_line_torn_by_a_kill_is_reported_and_the_other_rows_are_kept(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=4, every=2)
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text[:-30])
    run = read_run(path)
    assert list(run.metrics.index) == [0, 1, 2, 3]
    assert any("line 5 is torn" in fault and "lost" in fault for fault in run.faults)


def test_a_row_appended_to_a_torn_line_is_recovered(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=3, every=1)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([*lines[:2], lines[2][:25] + lines[2], lines[3]]) + "\n")
    run = read_run(path)
    assert list(run.metrics.index) == [0, 1, 2, 3]
    assert any("line 3 is torn" in fault and "kept" in fault for fault in run.faults)


def test_missing_steps_and_values_that_are_not_finite_are_reported(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=4, every=2)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[2]["rollout/accuracy"] = float("nan")
    del rows[3]
    (path / "metrics.jsonl").write_text("".join(map(metrics_line, rows)))
    run = read_run(path)
    assert "1 step missing between 1 and 4" in run.faults
    assert "rollout/accuracy is NaN or infinite at 1 step, first 2" in run.faults
    assert 2 not in run.series("rollout/accuracy").index


def test_a_null_metric_is_absent_and_no_fault(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=2, every=1)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[1]["clip/high_prob_mean"] = None
    (path / "metrics.jsonl").write_text("".join(map(metrics_line, rows)))
    run = read_run(path)
    assert list(run.series("clip/high_prob_mean").index) == [2]
    assert run.faults == ()


def test_an_empty_or_absent_folder_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"<arm>/seed_<n>/run\.json"):
        load(tmp_path)
    with pytest.raises(StudyError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_an_unreadable_run_is_listed_and_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path, steps=2, every=1)
    broken = write_run(tmp_path, seed=1, steps=2, every=1)
    (broken / "run.json").write_text("{")
    runs = load(tmp_path)
    assert len(runs) == 1
    assert list(runs.unreadable) == [str(broken)]


def test_cells_that_are_missing_or_failed_are_named_with_the_reason(tmp_path: Path) -> None:
    write_run(tmp_path, Arm(DAPO), 0, steps=2, every=1)
    write_run(tmp_path, Arm(NAIVE_GRPO), 0, steps=2, every=1, status="failed")
    gaps = load(tmp_path).missing(arms=("dapo", "dapo-clip_higher"))
    assert gaps["dapo-clip_higher", 0] == "no run folder"
    assert gaps["naive_grpo", 0] == "failed at step 2: RuntimeError: out of memory"
    assert ("dapo", 0) not in gaps


def test_packed_cells_read_like_the_runs_they_were_made_from(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", "leave_one_out", seeds=(0,), steps=4, every=2)
    torn = tmp_path / "runs" / "leave_one_out" / "dapo" / "seed_0" / "metrics.jsonl"
    torn.write_text(torn.read_text() + '{"step": 4, "rollout/accu')
    live = load(tmp_path / "runs")
    assert len(pack(live.runs, tmp_path / "packed", ())) == len(live)
    assert sorted(file.name for file in (tmp_path / "packed").iterdir()) == [
        "cells.parquet", "metrics.parquet", "samples.parquet",
    ]  # fmt: skip
    packed = load(tmp_path / "packed")
    assert packed.arms == live.arms
    pd.testing.assert_frame_equal(packed.frame(), live.frame(), check_dtype=False)
    scores = [runs.runs[0].evaluation("chain_sum")["correct"].to_numpy() for runs in (live, packed)]
    np.testing.assert_array_equal(*scores)
    assert [run.faults for run in packed] == [run.faults for run in live]
    assert "line 6 is torn" in str(packed.of("dapo")[0].faults)
    assert packed_config(tmp_path / "packed", "dapo", 0) == live.of("dapo")[0].config
    assert packed_config(tmp_path / "packed", "dapo", 1) is None
    assert [run.overrides for run in packed] == [run.overrides for run in live]


@pytest.mark.filterwarnings("error::pandas.errors.PerformanceWarning")
def test_a_run_with_more_than_a_hundred_metrics_is_packed_without_a_warning(tmp_path: Path) -> None:
    file = write_run(tmp_path / "run", steps=2, every=1) / "metrics.jsonl"
    more = {f"metric/{number}": 0.5 for number in range(120)}
    rows = [{**json.loads(line), **more} for line in file.read_text().splitlines()]
    file.write_text("".join(map(metrics_line, rows)))
    pack(load(tmp_path / "run").runs, tmp_path / "packed", ())
    assert set(more) < set(load(tmp_path / "packed").keys())


def test_a_damaged_packed_table_is_refused_by_name(tmp_path: Path) -> None:
    pack([read_run(write_run(tmp_path / "runs", steps=2, every=1))], tmp_path / "packed", ())
    file = tmp_path / "packed" / "metrics.parquet"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1  # in a page of numbers
    for damaged in (b"PAR1", bytes(flipped)):
        file.write_bytes(damaged)
        with pytest.raises(StudyError, match="packed: packed cells cannot be read"):
            load(tmp_path / "packed")


def test_live_and_packed_folders_are_read_as_one_and_a_changed_cell_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", steps=2, every=1)
    pack(load(tmp_path / "runs").runs, tmp_path / "packed", ())
    write_run(tmp_path / "runs", seed=1, steps=2, every=1)
    assert len(load(tmp_path / "runs", tmp_path / "packed")) == 2
    record = json.loads((path / "run.json").read_text()) | {"config_hash": "other"}
    (path / "run.json").write_text(json.dumps(record))
    assert len(load(tmp_path / "runs", tmp_path / "packed")) == 2  # another hash of the same config
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 7}))
    with pytest.raises(StudyError, match="different configs"):
        load(tmp_path / "runs", tmp_path / "packed")


def test_status_tells_done_running_lost_failed_and_missing_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, seed=0, study="placebo", steps=4, every=2)
    for seed, pid in ((1, 1), (2, 2**22 + 12345)):
        path = write_run(tmp_path, seed=seed, study="placebo", steps=10, every=5, status="running")
        (path / "run.json").write_text(json.dumps(json.loads((path / "run.json").read_text()) | {"pid": pid}))
    write_run(tmp_path, seed=3, study="placebo", steps=4, every=2, status="failed")
    plan = {"study": "placebo", "arms": design("placebo").names, "seeds": [0, 1, 2, 3]}
    (tmp_path / "placebo" / "study.json").write_text(json.dumps([{"at": "2026-01-01T00:00:00+00:00", "plan": plan}]))
    states = {cell.seed: cell for cell in progress(load(tmp_path)) if cell.arm == "dapo"}
    assert [states[seed].state for seed in range(4)] == ["done", "running", "lost", "failed"]
    assert states[1].eta_s == pytest.approx(26.0 / 10 * 30)  # 10 of 40 steps in 26 s
    assert states[3].note == "RuntimeError: out of memory"
    assert status([str(tmp_path)]) == 3
    printed = capsys.readouterr().out
    assert "dapo@rollout.noise_stream=1/seed_0" in printed
    assert "4 missing" in printed
    assert "metrics.jsonl" in next(line for line in printed.splitlines() if "failed" in line)


def test_status_of_a_study_that_is_only_registered_lists_every_cell_as_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan("placebo", arms=("dapo", "dapo@rollout.noise_stream=1"), seeds=(0, 1))
    register(tmp_path, plan)
    assert status([str(tmp_path)]) == 3
    assert "4 missing of 4 cells" in capsys.readouterr().out


def test_only_cells_that_were_asked_for_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register(tmp_path / "placebo", Plan("placebo", arms=("dapo", "dapo@rollout.noise_stream=1"), seeds=(0, 1)))
    for seed in (0, 7):  # 7: one cell that somebody ran in addition
        write_run(tmp_path, seed=seed, study="placebo", steps=4, every=2)
    assert status([str(tmp_path)]) == 3
    states = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines() if "/seed_" in line}
    other = "dapo@rollout.noise_stream=1"
    assert states == {
        "dapo/seed_0": "done", "dapo/seed_1": "missing", "dapo/seed_7": "done",
        f"{other}/seed_0": "missing", f"{other}/seed_1": "missing",
    }  # fmt: skip
    assert set(load(tmp_path).missing(("dapo", other), (0, 1))) == {("dapo", 1), (other, 0), (other, 1)}


def test_status_of_a_whole_study_packs_it_and_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path / "runs", "emergence", seeds=(0,), steps=2, every=1)
    assert status([str(tmp_path / "runs"), "--pack", str(tmp_path / "packed")]) == 0
    assert "packed 2 cells" in capsys.readouterr().out
    assert status([str(tmp_path / "packed")]) == 0
    assert status([str(tmp_path / "none")]) == 2


def test_report_refuses_what_cannot_be_compared_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*folders: Path) -> str:
        assert report([*map(str, folders), "--out", str(tmp_path / "out")]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no runs here" in refused(empty)

    write_run(tmp_path / "unfinished", steps=2, every=1, status="failed")
    assert "no run has finished" in refused(tmp_path / "unfinished")

    write_run(tmp_path / "mixed", steps=2, every=1)
    write_run(tmp_path / "mixed", Arm(NAIVE_GRPO), steps=2, every=1, code_hash="beef")
    assert "2 versions of the code" in refused(tmp_path / "mixed")

    write_run(tmp_path / "undeclared", steps=2, every=1)
    write_run(tmp_path / "undeclared", Arm(NAIVE_GRPO), steps=2, every=1, keys={"algorithm.optimizer.lr": 3e-4})
    assert "algorithm.optimizer.lr, which the study does not declare" in refused(tmp_path / "undeclared")

    write_run(tmp_path / "twice", steps=2, every=1)
    twin = write_run(tmp_path / "twice", Arm(NAIVE_GRPO), steps=2, every=1)
    (twin / "run.json").write_text(json.dumps(json.loads((twin / "run.json").read_text()) | {"config_hash": "dapo/0"}))
    assert "one config hash" in refused(tmp_path / "twice")

    write_run(tmp_path / "two", study="table1", steps=2, every=1)
    write_run(tmp_path / "two", study="leave_one_out", steps=2, every=1)
    assert "2 studies" in refused(tmp_path / "two")
