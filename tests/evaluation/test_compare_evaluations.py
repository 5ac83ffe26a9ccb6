"""docs/examples/compare_evaluations.py: intervals and p over questions, worked by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from compare_evaluations import flip_p, interval, main


def test_a_paired_comparison_tests_the_mean_difference_of_questions():
    d = np.array([0.5, 0.5, 0.5, 0.0])
    assert flip_p(d) == pytest.approx(2 / 8)  # of eight sign patterns of three questions the two extremes
    # sum of squares 0.75 + 1, weight 6, mean 0.25: variance (1.75 - 6 / 16) / 5 = 0.275, t(5) = 2.571
    half = 2.5706 * (0.275 / 6) ** 0.5
    assert interval(d) == pytest.approx((0.25 - half, 0.25 + half), abs=1e-4)
    # 40 up and 20 down, all by one: two-sided binomial, 2 P(Binomial(60, 1/2) >= 40) = 0.01349
    assert flip_p(np.repeat([1.0, -1.0], [40, 20])) == pytest.approx(0.01349, abs=0.0015)


def test_two_folders_are_compared_and_the_questions_written(tmp_path: Path, capsys):
    for name, right in (("one", [0, 0, 1, 0]), ("two", [1, 1, 1, 0])):
        table = pd.DataFrame({"problem_id": list("aabb"), "correct": right, "truncated": 0})
        (tmp_path / name).mkdir()
        table.assign(timed_out=False, failed=False).to_parquet(tmp_path / name / "samples.parquet")
    main([str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "questions.csv")])
    assert "correct: +0.500" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "questions.csv")["difference"].tolist() == [0.0, 1.0]
