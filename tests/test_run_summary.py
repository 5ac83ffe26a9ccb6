"""The table at the end of a run."""

from dapo_lit.cli.run_summary import print_summary
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
