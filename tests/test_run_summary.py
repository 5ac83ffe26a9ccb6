"""The table at the end of a run."""

import pandas as pd
import pytest

from dapo_lit.cli.run_summary import nothing_learned
from dapo_lit.runs.run_folder import RunFolder


@pytest.mark.parametrize(
    ("norm", "right", "named"),
    [
        (None, 0.1, "18 were all wrong and 2 all right"),
        (0.0, 0.1, "18 were all wrong and 2 all right"),
        (None, 0.9, "harder problems"),
        (0.1, 0.0, None),
    ],
    ids=["no update", "no gradient", "too easy", "one update with a gradient"],
)
def test_a_run_that_learned_nothing_says_why_and_shows_a_response(tmp_path, norm, right, named):
    """Two steps of ten groups each, of which this share is all right and the others all wrong."""
    folder = RunFolder(tmp_path, resumes=False)
    folder.append_row({"step": 0})
    for step in (1, 2):
        groups = {"rollout/groups_all_correct_frac": right, "rollout/groups_all_wrong_frac": 1 - right}
        folder.append_row({"step": step, "optim/grad_norm": norm, "sampling/groups_generated": 10} | groups)
    reason = nothing_learned(tmp_path, "own")
    if named is None:
        assert reason is None
        return
    assert named in reason
    (tmp_path / "eval" / "own").mkdir(parents=True)
    responses = pd.DataFrame({"response": ["It is\n12," + " or so" * 99]})
    responses.to_parquet(tmp_path / "eval" / "own" / "step_000002.parquet")
    assert "eval/own/step_000002.parquet: 'It is 12, or so" in nothing_learned(tmp_path, "own")
