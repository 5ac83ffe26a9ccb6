"""The table at the end of a run."""

import pandas as pd
import pytest

from dapo_lit.cli.run_summary import early_end, mostly_skipped, nothing_learned, print_summary
from dapo_lit.runs.run_folder import RunFolder


def test_the_summary_counts_the_held_out_problems_that_were_used(compose, tmp_path, capsys):
    config = compose("task=chain_sum", small=False)
    folder = RunFolder(tmp_path, resumes=False)
    folder.write_run(arm="dapo", status="finished", problems={"heldout": 3})
    label, k = config.task.label, config.evaluation.samples
    for step in (0, 1):
        folder.append_row({"step": step, f"eval/{label}/avg@{k}": 0.5, "tokens_generated": 0, "wall_s": 0.0})
    print_summary(folder, config)
    assert f"accuracy avg@{k}, 3 held-out problems" in capsys.readouterr().out


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


def test_an_early_end_is_named():
    assert "step 7 of 50" in early_end("exhausted", 7, 50, 3)
    assert early_end("solved", 7, 50, 3) != early_end("exhausted", 7, 50, 3)
    assert early_end("finished", 50, 50, 3) == early_end("exhausted", 50, 50, 3) == ""


@pytest.mark.parametrize(("skipped", "named"), [((0, 0), None), ((2, 0), None), ((2, 1), "3 of 4"), ((2, 2), "4 of 4")])
def test_a_run_whose_updates_were_mostly_skipped_says_so(tmp_path, skipped, named):
    """Two steps of two updates, and one that had no group to learn from."""
    folder = RunFolder(tmp_path, resumes=False)
    folder.append_row({"step": 0})
    for step, bad in enumerate(skipped, start=1):
        folder.append_row({"step": step, "optim/bad_updates": bad, "optim/grad_norm": None if bad == 2 else 0.1})
    folder.append_row({"step": 3, "optim/bad_updates": 0, "optim/grad_norm": None})
    reason = mostly_skipped(tmp_path, 2)
    assert (reason is None) if named is None else named in reason
