"""A cell of a committed study, made anew from its own base policy (`make sweeps`): committed studies stay repeatable.

The study ran on an AMD EPYC with AVX-512. On one of the same kind every number of the cell comes again. On another kind
sums are rounded otherwise: the first steps sample the same tokens, until one of them falls on the other side.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run_cli

from ablations.read.packed_cells import read_packed
from ablations.read.run import Run
from ablations.read.runs import load
from dapo_lit.runs.run_folder import processor

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
BASES = EXPERIMENTS / "bases" / "factorial_joint"
ARM, SEED, ACCURACY = "dapo-dynamic_sampling", 40, 0.28359375
SAME_KIND = torch.backends.cpu.get_cpu_capability() == "AVX512" and "AMD EPYC" in processor()
FIRST_STEPS = 3
"""Steps whose samples are the same on a processor of another kind; four were."""
CLOCK = ("wall_s", "time/", "perf/", "memory/")


@pytest.mark.skipif("DAPO_LIT_MATRIX" not in os.environ, reason="a minute of processor time: make sweeps")
def test_a_committed_cell_made_anew_equals_its_packed_rows(tmp_path: Path) -> None:
    if not BASES.is_dir():
        pytest.skip("experiments/bases is left out of this checkout (CONTRIBUTING.md)")
    cell = ["+study=factorial", "+regime=joint", f"study.arm={ARM}", f"seed={SEED}", f"policy.base_from={BASES}"]
    done = run_cli(*cell, "logger.progress=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (again,) = load(tmp_path / "runs" / "factorial_joint").runs
    assert repeats(again, SAME_KIND)


def repeats(again: Run, same_kind: bool) -> bool:
    """Compares a run with the packed cell; an assertion says in what they differ."""
    (packed,) = (r for r in read_packed(EXPERIMENTS / "factorial_joint" / "runs") if (r.arm, r.seed) == (ARM, SEED))
    assert again.record["base_weights"] == packed.record["base_weights"]
    assert packed.series("eval/joint/avg@2").iloc[-1] == pytest.approx(ACCURACY, abs=1e-7)
    for step in range(FIRST_STEPS + 1):
        for key in ("tokens_generated", "rollout/accuracy", "eval/joint/avg@2"):
            if step in packed.series(key).index:
                assert np.float32(again.metrics.loc[step, key]) == np.float32(packed.metrics.loc[step, key]), (
                    step,
                    key,
                )
    if same_kind:
        for key in packed.metrics:
            if key in again.metrics and not key.startswith(CLOCK):
                one, other = (run.metrics[key].to_numpy(float).astype("float32") for run in (again, packed))
                np.testing.assert_array_equal(one, other, err_msg=key)
        assert list(again.evaluation("joint")["correct"]) == list(packed.evaluation("joint")["correct"])
    return True
