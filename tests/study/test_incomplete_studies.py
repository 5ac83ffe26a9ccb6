"""Reports of studies that are not whole."""

import json
import re
from pathlib import Path

from synthetic_runs import write_run, write_study

from dapo_lit.report import main as report
from dapo_lit.run_files import append_row
from dapo_lit.study.designs import Arm
from dapo_lit.study.read.registration import read_plan
from dapo_lit.study.read.runs import load
from dapo_lit.study.report.document import in_terminal
from dapo_lit.study.report.page_one import page_one
from dapo_lit.study.report.report import build
from dapo_lit.study.report.results import analyse
from dapo_lit.techniques import DAPO


def text_of(folder: Path) -> str:
    """The report's text in wide lines, without a file."""
    plan, edits = read_plan(folder)
    results = analyse(load(folder), plan, tuple(edits))
    parts = build(results, page_one(results), "command").parts
    return "\n".join(in_terminal(parts, width=500))


def test_unequal_seeds_a_missing_arm_and_a_failed_run_are_said(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, Arm(DAPO), seed, study="leave_one_out", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}), 0, study="leave_one_out", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}), 1, study="leave_one_out", steps=6, every=3, status="failed")
    plan = {"study": "leave_one_out", "arms": ["dapo", "dapo-clip_higher", "dapo-dynamic_sampling"], "seeds": [0, 1, 2]}
    entry = {"at": "2026-01-01T00:00:00+00:00", "plan": plan}
    (tmp_path / "leave_one_out" / "study.json").write_text(json.dumps([entry]))
    assert report([str(tmp_path / "leave_one_out")]) == 3
    results = json.loads((tmp_path / "leave_one_out" / "report" / "report.json").read_text())
    assert [(row["arm"], row["runs"]) for row in results["tables"]["outcomes"]] == [
        ("dapo", "3"),
        ("dapo-clip_higher", "1"),
    ]
    missing = {(row["arm"], row["seed"]): row["reason"] for row in results["missing"]}
    assert missing["dapo-dynamic_sampling", 0] == "no run folder"
    assert missing["dapo-clip_higher", 1] == "failed at step 6: RuntimeError: out of memory"
    assert {row["run"] for row in results["tables"]["health"]} >= {f"{arm}/seed_{seed}" for arm, seed in missing}


def test_a_nan_in_the_primary_metric_takes_the_run_out_of_the_average_and_says_so(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "pair", seeds=(0, 1, 2), steps=6, every=3)
    file = folder / "dapo" / "seed_1" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    for row in rows:  # as a run writes it
        bad = {"eval/chain_sum/avg@4": float("nan")} if row is rows[-1] else {}
        append_row(file.parent, row | bad)
    text = text_of(folder)
    assert re.search(r"dapo/seed_1 +not averaged +eval/chain_sum/avg@4 is NaN or infinite at 1 step, first 6", text)
    assert re.search(r"clip-higher +accuracy on chain_sum \(avg@4\) +2 ", text)
