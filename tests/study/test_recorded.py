"""What notebooks read beside metrics: completions, tokens, and the figures made of them."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic_runs import write_run

from dapo_lit.study.read.runs import StudyError, load, load_first


def test_completions_and_tokens_of_all_runs_stand_in_one_table_each(tmp_path: Path):
    runs = [write_run(tmp_path, seed=seed, steps=4, every=2) for seed in (0, 1)]
    for kind in ("rollouts", "tokens"):
        with pytest.raises(StudyError):
            load(tmp_path).frame(kind)
    (runs[1] / "rollouts").mkdir(exist_ok=True)
    pd.DataFrame({"problem_id": ["a", "a", "b"]}).to_parquet(runs[1] / "rollouts" / "step_000003.parquet")
    (runs[0] / "replay" / "step_000004").mkdir(parents=True)
    (runs[0] / "replay" / "step_000004.ckpt").write_bytes(b"")
    pd.DataFrame({"ratio": [1.0, 1.2]}).to_parquet(runs[0] / "replay" / "step_000004" / "dapo-clip_higher.parquet")
    found = load(tmp_path).frame("rollouts")
    assert list(found.columns[:4]) == ["study", "arm", "seed", "step"]
    assert (len(found), set(found["seed"]), set(found["step"])) == (3, {1}, {3})
    found = load(tmp_path).frame("tokens")
    assert (len(found), set(found["seed"]), set(found["step"])) == (2, {0}, {4})
    assert set(found["replayed"]) == {"dapo-clip_higher"}
    assert set(found["arm"]) == {"dapo"}


def test_the_first_folder_with_a_finished_run_is_read(tmp_path: Path):
    write_run(tmp_path / "own", status="failed", steps=4, every=2)
    write_run(tmp_path / "shipped", steps=4, every=2, seed=7)
    assert load_first(tmp_path / "none", tmp_path / "own", tmp_path / "shipped").seeds == (7,)
    with pytest.raises(StudyError, match=r"none: .*own: "):
        load_first(tmp_path / "none", tmp_path / "own")
