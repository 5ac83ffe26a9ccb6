"""Run folders read as they are on disk: torn, doubled, packed, half finished or not runs at all."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from shipped import design
from synthetic_runs import write_run, write_study

from ablations.commands.report import main as report
from ablations.commands.status import main as status
from ablations.commands.status import seconds_left, state_of
from ablations.designs import Arm
from ablations.files.metrics_file import metrics_line
from ablations.read.packed_cells import pack, read_cells, read_packed, write_packed
from ablations.read.run import Run
from ablations.read.runs import StudyError, load, read_run, run_folders
from ablations.techniques import NAIVE_GRPO


def without_a_step_and_with_nan(lines: list[str]) -> str:
    rows = [json.loads(line) for line in lines]
    rows[2]["rollout/accuracy"] = float("nan")
    return "".join(map(metrics_line, [*rows[:3], rows[4]]))


def with_a_null(lines: list[str]) -> str:
    rows = [json.loads(line) for line in lines]
    rows[1]["rollout/accuracy"] = None
    return "".join(map(metrics_line, rows))


DAMAGES: dict[str, tuple[Callable[[list[str]], str], list[int], list[str]]] = {
    "a resume went back": (
        lambda lines: "".join(lines) + metrics_line({"step": 3, "rollout/accuracy": 0.125}),
        [0, 1, 2, 3],
        ["2 rows left out"],
    ),
    "a line torn by a kill": (lambda lines: "".join(lines)[:-30], [0, 1, 2, 3], ["line 5 is torn"]),
    "a step missing, a value not finite": (
        without_a_step_and_with_nan,
        [0, 1, 2, 4],
        ["1 step missing between 0 and 4", "rollout/accuracy is NaN or infinite at 1 step, first 2"],
    ),
    "null": (with_a_null, [0, 1, 2, 3, 4], []),
}
"""What becomes of the lines of five rows; the steps that are read then, and the faults."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_rows_that_were_damaged_are_reported_and_the_others_kept(tmp_path: Path, damage: str) -> None:
    change, steps, faults = DAMAGES[damage]
    path = write_run(tmp_path, steps=4, every=2)
    file = path / "metrics.jsonl"
    file.write_text(change(file.read_text().splitlines(keepends=True)))
    run = read_run(path)
    assert list(run.metrics.index) == steps
    assert len(run.faults) == len(faults)
    assert all(any(fault in found for found in run.faults) for fault in faults)
    assert run.series("rollout/accuracy").notna().all()
    if damage == "a resume went back":
        assert run.metrics.loc[3, "rollout/accuracy"] == 0.125


def test_an_empty_or_absent_folder_is_refused_and_an_unreadable_run_does_not_hide_the_others(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StudyError, match=str(folder)):
            load(folder)
    write_run(tmp_path, steps=2, every=1)
    broken = write_run(tmp_path, seed=1, steps=2, every=1)
    (broken / "run.json").write_text("{")
    runs = load(tmp_path)
    assert len(runs) == 1
    assert list(runs.unreadable) == [str(broken)]


def test_packed_cells_read_like_the_runs_they_were_made_from(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", "leave_one_out", seeds=(0,), steps=4, every=2)
    torn = tmp_path / "runs" / "leave_one_out" / "dapo" / "seed_0" / "metrics.jsonl"
    torn.write_text(torn.read_text() + '{"step": 4, "rollout/accu')
    live = load(tmp_path / "runs")
    assert len(pack(live.runs, tmp_path / "packed", ())) == len(live)
    assert sorted(file.name for file in (tmp_path / "packed").iterdir()) == [
        "cells.parquet", "manifest.json", "metrics.parquet", "samples.parquet",
    ]  # fmt: skip
    packed = load(tmp_path / "packed")
    assert packed.arms == live.arms
    pd.testing.assert_frame_equal(packed.frame(), live.frame(), check_dtype=False)
    scores = [runs.runs[0].evaluation("chain_sum")["correct"].to_numpy() for runs in (live, packed)]
    np.testing.assert_array_equal(*scores)
    assert [run.faults for run in packed] == [run.faults for run in live]
    assert "line 6 is torn" in str(packed.of("dapo")[0].faults)
    assert [cell.config for cell in read_cells(tmp_path / "packed", "dapo", 0)] == [live.of("dapo")[0].config]
    assert not read_cells(tmp_path / "packed", "dapo", 1)
    assert [run.overrides for run in packed] == [run.overrides for run in live]


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
    runs = load(tmp_path).of("dapo")
    assert [state_of(run)[0] for run in runs] == ["done", "running", "lost", "failed"]
    assert seconds_left(runs[1]) == pytest.approx(26.0 / 10 * 30)  # 10 of 40 steps in 26 s
    assert state_of(runs[3])[1] == "RuntimeError: out of memory"
    assert status([str(tmp_path)]) == 3
    printed = capsys.readouterr().out
    assert "dapo@rollout.noise_stream=1/seed_0" in printed
    assert "4 missing" in printed
    assert "metrics.jsonl" in next(line for line in printed.splitlines() if "failed" in line)


def refused_folders(place: Path) -> dict[str, Path]:
    """What is wrong with a folder, in words of the message, and the folder."""
    small = {"steps": 2, "every": 1}
    (place / "empty").mkdir()
    write_run(place / "unfinished", status="failed", **small)
    for name in ("mixed", "undeclared"):
        write_run(place / name, **small)
    write_run(place / "mixed", Arm(NAIVE_GRPO), code_hash="beef", **small)
    write_run(place / "undeclared", Arm(NAIVE_GRPO), keys={"algorithm.optimizer.lr": 3e-4}, **small)
    for study in ("table1", "leave_one_out"):
        write_run(place / "two", study=study, **small)
    words = ("no runs", "finished", "versions", "algorithm.optimizer.lr", "2 studies")
    names = ("empty", "unfinished", "mixed", "undeclared", "two")
    return {said: place / name for said, name in zip(words, names, strict=True)}


def test_report_refuses_what_cannot_be_compared_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for said, folder in refused_folders(tmp_path).items():
        assert report([str(folder), "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_completions_and_tokens_of_all_runs_stand_in_one_table_each(tmp_path: Path):
    runs = [write_run(tmp_path, seed=seed, steps=4, every=2) for seed in (0, 1)]
    for kind in ("rollouts", "tokens"):
        with pytest.raises(StudyError):
            load(tmp_path).frame(kind)
    (runs[1] / "rollouts").mkdir(exist_ok=True)
    pd.DataFrame({"problem_id": ["a", "a", "b"]}).to_parquet(runs[1] / "rollouts" / "step_000003.parquet")
    (runs[0] / "replay" / "step_000004").mkdir(parents=True)
    (runs[0] / "replay" / "step_000004.ckpt").write_bytes(b"")
    pd.DataFrame({"ratio": [1.0, 1.2]}).to_parquet(runs[0] / "replay" / "step_000004" / "dapo-clip_higher.parquet")
    found = load(tmp_path).frame("rollouts")
    assert list(found.columns[:4]) == ["study", "arm", "seed", "step"]
    assert (len(found), set(found["seed"]), set(found["step"])) == (3, {1}, {3})
    found = load(tmp_path).frame("tokens")
    assert (len(found), set(found["seed"]), set(found["step"])) == (2, {0}, {4})
    assert set(found["replayed"]) == {"dapo-clip_higher"}
    assert set(found["arm"]) == {"dapo"}


def test_links_to_runs_and_to_arms_are_read_and_a_link_that_leads_back_ends(tmp_path: Path) -> None:
    real = write_run(tmp_path / "elsewhere", steps=2, every=2)
    other = write_run(tmp_path / "elsewhere", seed=1, steps=2, every=2)
    arm = tmp_path / "study" / "dapo"
    arm.mkdir(parents=True)
    real.rename(tmp_path / "elsewhere" / "moved")
    (arm / "seed_0").symlink_to(tmp_path / "elsewhere" / "moved")  # a run, under another name
    (tmp_path / "study" / "linked").symlink_to(other.parent)  # the folder of an arm
    (tmp_path / "study" / "loop").symlink_to(tmp_path / "study")
    (tmp_path / "study" / "gone").symlink_to(tmp_path / "nowhere")
    assert load(tmp_path / "study").seeds == (0, 1)


def test_the_folder_of_a_run_is_read_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_run(tmp_path, seed=3, steps=2, every=2))
    assert load(".").seeds == (3,)


def test_a_search_for_runs_gives_up_on_a_folder_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`decide /` went through the whole disk before it said anything."""
    monkeypatch.setattr("ablations.read.runs.MOST_FOLDERS", 5)
    for number in range(3):
        write_run(tmp_path / "study", seed=number, steps=2, every=1)
    assert len(run_folders(tmp_path)) == 3  # a run's own folders are not counted
    for number in range(5):
        (tmp_path / f"other_{number}").mkdir()
    with pytest.raises(StudyError, match="more than 5 folders"):
        run_folders(tmp_path)


def test_points_are_the_logged_steps_and_numbers_of_a_metric_whatever_its_column_holds(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"a": [1.0, np.nan, 3.0], "b": ["1", "none", None], "c": [1, 2, 3], "d": [True, False, True]},
        index=pd.Index([0, 1, 3], name="step"),
    )
    run = Run.of(tmp_path, {"arm": "dapo", "seed": 0}, {}, metrics=table.assign(e=table["a"].astype("float32")))
    expected = {
        "a": ([0, 3], [1, 3]), "b": ([0], [1]), "c": ([0, 1, 3], [1, 2, 3]), "d": ([0, 1, 3], [1, 0, 1]),
        "e": ([0, 3], [1, 3]), "absent": ([], []),
    }  # fmt: skip
    found = {key: tuple(part.tolist() for part in run.points(key)) for key in expected}
    assert found == expected
    assert {key: (s.index.tolist(), s.tolist()) for key in expected for s in [run.series(key)]} == expected
    # A column of another kind in the table must not change the precision of this one.
    assert run.points("e")[1].dtype == np.float32


def test_packed_samples_are_those_of_each_cell_and_benchmark_in_their_order(tmp_path: Path) -> None:
    runs = [
        Run.of(
            tmp_path / "live" / arm / f"seed_{seed}",
            {"arm": arm, "seed": seed, "study": "s", "status": "finished"},
            {},
            metrics=pd.DataFrame({"m": [float(seed)]}, index=pd.Index([seed], name="step")),
            packed_samples={
                name: pd.DataFrame({"problem_id": [f"{arm}{seed}{name}{i}" for i in range(2)], "sample_index": [1, 0],
                                    "correct": [True, False]})
                for name in names
            },
        )
        for arm, seed, names in [("b", 1, ("z", "y")), ("a", 0, ("y",)), ("b", 0, ())]
    ]  # fmt: skip
    write_packed(runs, tmp_path / "packed")
    for run, again in zip(runs, read_packed(tmp_path / "packed"), strict=True):
        assert (again.arm, again.seed, again.benchmarks) == (run.arm, run.seed, run.benchmarks)
        assert again.metrics["m"].to_dict() == run.metrics["m"].to_dict()
        for name in run.benchmarks:
            assert list(again.evaluation(name)["problem_id"]) == list(run.evaluation(name)["problem_id"])
