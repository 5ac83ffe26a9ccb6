"""The table at the end of a run."""

import pandas as pd

from dapo_lit.cli.run_summary import print_summary, sentence
from dapo_lit.runs.run_folder import RunFolder


def test_the_summary_counts_the_held_out_problems_that_were_used(compose, tmp_path, capsys):
    config = compose("task=chain_sum", small=False)
    folder = RunFolder(tmp_path, resumes=False)
    folder.write_run(arm="dapo", problems={"heldout": 3})
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
