"""Reports of studies that are not whole, of other designs, and of registered events."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_run, write_study

from dapo_lit.report import main as report
from dapo_lit.run_files import append_row
from dapo_lit.study.designs import Arm
from dapo_lit.study.read.registration import Plan, read_plan, register
from dapo_lit.study.read.runs import load
from dapo_lit.study.report.checks_section import train_command
from dapo_lit.study.report.document import markdown
from dapo_lit.study.report.report import build
from dapo_lit.study.report.results import analyse
from dapo_lit.techniques import DAPO, NAIVE_GRPO

QUICK = ["--axes", "step", "--formats", "png"]


def text_of(folder: Path) -> str:
    """The report's text, without the paper's figures and without a file."""
    plan, edits = read_plan(folder)
    return markdown(build(analyse(load(folder), plan, tuple(edits)), "command", axes=()))


def test_one_run_gives_a_report_that_compares_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, study="single", steps=6, every=3)
    text = text_of(tmp_path / "single")
    assert "nothing is compared" in text
    assert "no power to state" in text


def test_one_seed_has_no_interval_anywhere_in_its_findings(tmp_path: Path) -> None:
    text = text_of(write_study(tmp_path, "emergence", seeds=(0,), steps=6, every=3))
    findings = text.split("## 1.")[1].split("## 2.")[0]
    assert "points | – | – | – | – |" in findings
    assert "t-interval, paired" not in findings
    assert "the spread is unknown" in text


def test_unequal_seeds_a_missing_arm_and_a_failed_run_are_said(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, Arm(DAPO), seed, study="leave_one_out", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}), 0, study="leave_one_out", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}), 1, study="leave_one_out", steps=6, every=3, status="failed")
    plan = {"study": "leave_one_out", "arms": ["dapo", "dapo-clip_higher", "dapo-dynamic_sampling"], "seeds": [0, 1, 2]}
    entry = {"at": "2026-01-01T00:00:00+00:00", "plan": plan}
    (tmp_path / "leave_one_out" / "study.json").write_text(json.dumps([entry]))
    assert report([str(tmp_path / "leave_one_out"), *QUICK]) == 3
    text = (tmp_path / "leave_one_out" / "report" / "report.md").read_text()
    assert "unequal numbers of seeds (dapo 3, dapo-clip_higher 1)" in text
    assert "| dapo-dynamic_sampling/seed_0 | missing | no run folder |" in text
    assert "failed at step 6: RuntimeError: out of memory" in text
    assert "one seed" in text


def test_a_nan_in_the_primary_metric_takes_the_run_out_of_the_average_and_says_so(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "emergence", seeds=(0, 1, 2), steps=6, every=3)
    file = folder / "dapo" / "seed_1" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    for row in rows:  # as a run writes it
        bad = {"eval/chain_sum/avg@4": float("nan")} if row is rows[-1] else {}
        append_row(file.parent, row | bad)
    text = text_of(folder)
    assert "| dapo/seed_1 | not averaged | eval/chain_sum/avg@4 is NaN or infinite at 1 step, first 6 |" in text
    assert "| clip-higher | accuracy on chain_sum (avg@4) | 2 | " in text


def test_rows_doubled_by_a_resume_are_said_and_change_nothing(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "emergence", seeds=(0, 1), steps=6, every=3)
    before = text_of(folder).split("## 5.")[0]
    file = folder / "dapo" / "seed_0" / "metrics.jsonl"
    file.write_text(file.read_text() + "".join(file.read_text().splitlines(keepends=True)[-2:]))
    after = text_of(folder)
    assert "2 rows left out: a resume went on from a step before" in after
    assert after.split("## 5.")[0] == before


def test_mixed_code_is_reported_on_demand_and_said_at_the_top(tmp_path: Path) -> None:
    write_run(tmp_path, Arm(DAPO), study="x", steps=6, every=3)
    write_run(tmp_path, Arm(NAIVE_GRPO), study="x", steps=6, every=3, code_hash="beef")
    assert report([str(tmp_path / "x"), *QUICK, "--allow-mixed"]) == 0
    text = (tmp_path / "x" / "report" / "report.md").read_text()
    assert "**Compared in spite of:** the runs were made by 2 versions of the code" in text.split("## 1.")[0]


def test_a_registered_event_is_counted_with_runs_that_never_get_there_as_censored(tmp_path: Path) -> None:
    event = {
        "key": "task/steps_frac",
        "threshold": 0.5,
        "treated": "dapo",
        "control": "dapo-clip_higher",
        "horizon": 20,
    }
    register(tmp_path / "emergence", Plan("emergence", seeds=tuple(range(6)), event=event))
    for seed in range(6):
        write_run(tmp_path, Arm(DAPO), seed, study="emergence", steps=20, every=10, emergence=5 + seed)
        never = Arm(DAPO - {"clip_higher"})
        write_run(tmp_path, never, seed, study="emergence", steps=20, every=10, emergence=10 if seed == 0 else np.inf)
    text = text_of(tmp_path / "emergence")
    assert "| dapo | 6 of 6 | 7.5 (" in text
    assert "| dapo-clip_higher | 1 of 6 | 18.3 (" in text  # (10 + 5 x 20) / 6
    assert "5 pairs only with, 0 only without; exact McNemar p 0.0625" in text
    first = text.split("## 1. Findings")[1].split("\n\n")[2]
    assert "in 6 of 6 runs of dapo and 1 of 6 of dapo-clip_higher" in first
    assert "1 in both, 5 only in the first, 0 only in the second, 0 in neither" in first
    assert "decides nothing" in first  # 2 / 2^5 is above 0.05


def test_the_command_names_the_study_and_sweeps_over_what_the_runs_were_started_with(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "emergence", seeds=(0, 1), steps=2, every=1)
    for file in folder.glob("*/*/overrides.txt"):
        arm, seed = file.parent.parent.name, file.parent.name.removeprefix("seed_")
        told = f"logger.progress=plain\nruns_dir={tmp_path}\nstudy.workers=1\ntrainer.threads=1\nbudget.steps=2"
        file.write_text(f"{told}\n+study=emergence\nregime.bases=[4]\nseed={seed}\nstudy.arm='{arm}'\n")
    runs = load(folder)
    assert (
        train_command(runs) == "python -m dapo_lit.train -m budget.steps=2 +study=emergence 'regime.bases=[4]' seed=0,1"
    )
    for file in folder.glob("*/*/overrides.txt"):
        clip = str(file.parent.parent.name == "dapo").lower()
        file.write_text(f"+experiment=x\nalgorithm.techniques.clip_higher={clip}\nseed=0\n")
    runs = load(folder)
    assert train_command(runs).startswith("python -m dapo_lit.train -m +experiment=x algorithm.techniques.clip_higher=")
    assert "false,true" in train_command(runs) or "true,false" in train_command(runs)


@pytest.mark.parametrize("name", ["factorial_half", "clip_dose"])
def test_other_designs_are_reported_too(tmp_path: Path, name: str) -> None:
    text = text_of(write_study(tmp_path, name, seeds=(0, 1), steps=4, every=2))
    assert ("interactions" in text) == (name == "factorial_half")
    assert ("settings" in text) == (name == "clip_dose")
