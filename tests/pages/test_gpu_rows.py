"""What pages say of a GPU is what the rows measured there say; a machine is named by its card, never by its paths."""

import json
import re
from pathlib import Path

import on_gpu
import pytest
from cells import ROOT

FOLDERS = sorted(path for path in (ROOT / "benchmarks" / "results" / "gpu").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_of_measured_rows_says_where_and_with_what_they_were_measured(folder: Path):
    found = json.loads((folder / "conditions.json").read_text())
    assert {"gpu", "driver", "commit", "date", "versions"} <= set(found)
    assert folder.name.startswith(found["date"])
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:opt|home|root|tmp|work|mnt)/", text), file
        if file.suffix == ".jsonl":
            assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


def test_a_start_that_did_not_work_is_called_not_run_again_exactly_until_a_later_row_repeats_it():
    starts = [row for folder in on_gpu.folders() for row in on_gpu.rows("starts", folder)]
    names = [row["id"] for row in starts]
    assert len(set(names)) == len(names)
    repeated = {row["repeats"]: row for row in starts if "repeats" in row}
    assert all(names.index(first) < names.index(later["id"]) for first, later in repeated.items())
    for row in starts:
        said = on_gpu.since_then(row)
        assert ("not run again" in said) == (row["result"] != "works" and row["id"] not in repeated), row
    [adapters] = [row for row in starts if row["id"] == "adapters"]
    assert on_gpu.since_then(adapters).endswith("on the H200, `policy.lora={rank: 8, alpha: 8}`: works")


def test_the_card_samples_the_tokens_of_the_cpu_and_its_metrics_are_the_cpus_within_rounding():
    steps = [on_gpu.compared(step) for step in range(1, 7)]
    assert all(step["tokens"][0] == step["tokens"][1] for step in steps)
    assert max(step["largest"] for step in steps) < 5e-6
    assert min(step["equal"] / step["metrics"] for step in steps) > 0.8


def test_metrics_that_the_clock_decides_are_not_compared():
    """A row differs in its wall time and checksum, so counting these would find fewer equal metrics."""
    cpu, gpu = ({row["step"]: row for row in on_gpu.rows(name)}[1] for name in ("sums_cpu", "sums_gpu"))
    assert cpu["wall_s"] != gpu["wall_s"]
    assert on_gpu.compared(1)["metrics"] < sum(not key.startswith("mismatch/") for key in cpu) - 8


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", *(f"docs/tutorials/{n}.md" for n in ("gpu", "cluster"))]
)
def test_no_page_says_that_nothing_has_run_on_a_gpu(page: str):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert not re.search(r"[Nn]othing (here )?(has|was) (been )?run on a GPU|No GPU, NCCL", text)
