"""The table at the end of a run."""

import pandas as pd
import pytest

from dapo_lit.cli.run_summary import early_end, nothing_learned, print_summary, sentence
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


def test_the_run_ends_in_a_sentence_about_what_changed():
    def row(step: int, **values: float) -> pd.Series:
        return pd.Series({f"e/{key.replace('_at_', '@')}": value for key, value in values.items()}, name=step)

    before = row(0, avg_at_8=0.341, length_mean=25.04)
    after = row(60, avg_at_8=0.72, length_mean=25.01)
    assert sentence(before, after, "e/", 8, 200).startswith(
        "By step 60 accuracy on 200 held-out problems rose from 0.341 to 0.720 and mean length stayed at 25.0 tokens."
    )
    worse = row(60, avg_at_8=0.3, length_mean=33.0)
    assert "fell from 0.341 to 0.300 and mean length rose from 25.0 to 33.0" in sentence(before, worse, "e/", 8, 200)
    assert sentence(before, before, "e/", 8, 200) == ""
    assert sentence(before, row(60, length_mean=33.0), "e/", 8, 200) == ""


def ended(folder: RunFolder, norm: float | None, right: float) -> None:
    """Writes the rows of two steps of ten groups each, of which this share is all right and the others all wrong."""
    folder.append_row({"step": 0})
    for step in (1, 2):
        groups = {"rollout/groups_all_correct_frac": right, "rollout/groups_all_wrong_frac": 1 - right}
        folder.append_row({"step": step, "optim/grad_norm": norm, "sampling/groups_generated": 10} | groups)


@pytest.mark.parametrize("norm", [None, 0.0], ids=["no update", "no gradient"])
def test_a_run_that_learned_nothing_says_why_and_shows_a_response(tmp_path, norm):
    ended(RunFolder(tmp_path, resumes=False), norm, right=0.1)
    reason = nothing_learned(tmp_path, "own")
    assert "of the 20 groups of 2 steps 18 were all wrong and 2 all right" in reason
    assert reason.endswith("(docs/troubleshooting.md).")
    (tmp_path / "eval" / "own").mkdir(parents=True)
    responses = pd.DataFrame({"response": ["It is\n12," + " or so" * 99]})
    responses.to_parquet(tmp_path / "eval" / "own" / "step_000002.parquet")
    assert "eval/own/step_000002.parquet: 'It is 12, or so or so" in nothing_learned(tmp_path, "own")


def test_too_easy_problems_have_advice_of_their_own(tmp_path):
    ended(RunFolder(tmp_path, resumes=False), norm=None, right=0.9)
    assert nothing_learned(tmp_path, "own").endswith("Take harder problems.")


def test_one_update_with_a_gradient_is_enough(tmp_path):
    ended(RunFolder(tmp_path, resumes=False), norm=0.1, right=0.0)
    assert nothing_learned(tmp_path, "own") is None


def test_an_early_end_is_named():
    exhausted = "It ended at step 7 of 50: no group of the last 3 steps had both right and wrong responses."
    assert early_end("exhausted", 7, 50, 3) == exhausted
    assert early_end("solved", 7, 50, 3).startswith("It ended at step 7 of 50: all responses of step 7 were right")
    assert early_end("finished", 50, 50, 3) == early_end("exhausted", 50, 50, 3) == ""
