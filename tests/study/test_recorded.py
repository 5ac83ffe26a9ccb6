"""What notebooks read beside metrics: completions, tokens, and the figures made of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import write_run, write_study

from dapo_lit.study.figures.effect_figures import plot_effects, plot_outcomes
from dapo_lit.study.read.runs import StudyError, load, load_first

KEY = "rollout/length_mean"


def completions() -> pd.DataFrame:
    """Two groups of two at each of two steps; one response in four has a `?` at step 1, two at step 2."""
    rows = [("a", 0, "#1?"), ("a", 1, "#1"), ("b", 0, "#2"), ("b", 1, "#3")]
    table = pd.DataFrame(rows, columns=["problem_id", "sample_index", "response"]).assign(attempt=0, correct=True)
    later = table.assign(response=["#1?", "#1?", "#2", "#3"])
    return pd.concat([table.assign(step=1), later.assign(step=2)], ignore_index=True)


def tokens() -> pd.DataFrame:
    """Three tokens to become likelier, two to become less likely, and one of the first update."""
    ratio = np.array([1.0, 1.0, 1.25, 1.5, 0.5, 9.0])
    return pd.DataFrame(
        {
            "update": [1, 2, 2, 2, 2, 3],
            "ratio": ratio,
            "old_logprob": np.log([0.5, 0.5, 0.05, 0.05, 0.5, 0.5]),
            "advantage": [1.0, 1.0, 1.0, 1.0, -1.0, -1.0],
            "clipped": ["no", "no", "no", "high", "low", "no"],
        }
    )


def test_completions_and_tokens_of_all_runs_stand_in_one_table_each(tmp_path: Path):
    runs = [write_run(tmp_path, seed=seed, steps=4, every=2) for seed in (0, 1)]
    with pytest.raises(StudyError, match="no run recorded rollouts; logger"):
        load(tmp_path).frame("rollouts")
    with pytest.raises(StudyError, match="no step of these runs was replayed"):
        load(tmp_path).frame("tokens")
    (runs[1] / "rollouts").mkdir(exist_ok=True)
    completions().drop(columns="step").to_parquet(runs[1] / "rollouts" / "step_000003.parquet")
    (runs[0] / "replay" / "step_000004").mkdir(parents=True)
    (runs[0] / "replay" / "step_000004.ckpt").write_bytes(b"")
    tokens().to_parquet(runs[0] / "replay" / "step_000004" / "dapo-clip_higher.parquet")
    found = load(tmp_path).frame("rollouts")
    assert list(found.columns[:4]) == ["study", "arm", "seed", "step"]
    assert (len(found), set(found["seed"]), set(found["step"])) == (8, {1}, {3})
    found = load(tmp_path).frame("tokens")
    assert (len(found), set(found["seed"]), set(found["step"])) == (6, {0}, {4})
    assert set(found["replayed"]) == {"dapo-clip_higher"}
    assert set(found["arm"]) == {"dapo"}


def test_the_first_folder_with_a_finished_run_is_read(tmp_path: Path):
    write_run(tmp_path / "own", status="failed", steps=4, every=2)
    write_run(tmp_path / "shipped", steps=4, every=2, seed=7)
    assert load_first(tmp_path / "none", tmp_path / "own", tmp_path / "shipped").seeds == (7,)
    with pytest.raises(StudyError, match=r"none: no such folder; .*own: no finished run"):
        load_first(tmp_path / "none", tmp_path / "own")


def test_outcomes_and_the_increments_of_a_ladder_are_drawn_with_their_captions(tmp_path: Path):
    runs = load(write_study(tmp_path, "table1", seeds=(0, 1, 2), steps=6, every=3))
    for figure in (plot_outcomes(runs, KEY), plot_effects(runs, "ladder", KEY)):
        assert "95 % t-interval" in figure.texts[-1].get_text().replace("\n", " ")
    with pytest.raises(StudyError, match="ladder"):
        plot_effects(load(tmp_path / "table1" / "dapo"), "ladder", KEY)
