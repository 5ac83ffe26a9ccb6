"""docs/examples/compare_evaluations.py: intervals and p over questions, worked by hand."""

import json
from pathlib import Path
from typing import Any

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


def evaluation(folder: Path, right: list[int], record: dict[str, Any] | None = None, late: str = "") -> str:
    """A folder of two samples of each of the questions a, b, ...; those of the questions in `late` have no verdict."""
    ids = [chr(ord("a") + place // 2) for place in range(len(right))]
    table = pd.DataFrame({"problem_id": ids, "question_digest": ids, "correct": right, "truncated": 0})
    folder.mkdir()
    table.assign(timed_out=[each in late for each in ids], failed=False).to_parquet(folder / "samples.parquet")
    if record is not None:
        (folder / "evaluation.json").write_text(json.dumps(record))
    return str(folder)


def test_two_folders_are_compared_and_the_questions_written(tmp_path: Path, capsys):
    folders = [evaluation(tmp_path / "one", [0, 0, 1, 0]), evaluation(tmp_path / "two", [1, 1, 1, 0])]
    main([*folders, str(tmp_path / "questions.csv")])
    assert "correct: +0.500" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "questions.csv")["difference"].tolist() == [0.0, 1.0]


def test_questions_without_a_verdict_in_one_of_the_two_are_left_out_and_counted(tmp_path: Path, capsys):
    one = evaluation(tmp_path / "one", [0, 0, 1, 0, 0, 0], late="a")
    two = evaluation(tmp_path / "two", [1, 1, 1, 1, 0, 0], late="c")
    main([one, two])
    printed = capsys.readouterr().out
    assert "2 of 3 questions have no verdict" in printed
    assert "correct: +0.500" in printed
    assert "of 1 questions" in printed
    three = evaluation(tmp_path / "three", [1, 1, 1, 1])
    with pytest.raises(SystemExit, match="different questions"):
        main([one, three])


RECORD = {
    "sampling": {"temperature": 1.0, "seed": 0}, "rule": "numeric", "extraction": "hash", "prompt_date": "2026-01-02",
    "benchmark": {"template": "plain"}, "inputs": {"tokenizer": "t"}, "questions": {"a": "a", "b": "b"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rule": "sympy", "extraction": "boxed"}, ["rule is numeric and sympy", "extraction is hash and boxed"]),
        ({"sampling": {"temperature": 0.2, "seed": 0}}, ["sampling.temperature is 1.0 and 0.2"]),
        ({"benchmark": {"template": "boxed"}}, ["template is plain and boxed"]),
        ({}, []),
    ],
)
def test_each_difference_of_two_protocols_is_a_line(tmp_path: Path, capsys, changed, named):
    folders = [evaluation(tmp_path / "one", [0, 0, 1, 0], RECORD)]
    folders.append(evaluation(tmp_path / "two", [1, 1, 1, 0], RECORD | changed))
    main(folders)
    lines = [line for line in capsys.readouterr().out.splitlines() if "differ" in line]
    assert [line.removeprefix("the protocols differ: ") for line in lines] == named


def test_an_edited_question_is_refused_where_the_prompts_cannot_differ_for_another_reason(tmp_path: Path, capsys):
    edited = RECORD | {"questions": {"a": "a", "b": "x"}}

    def other(name: str, **changes: Any) -> str:
        folder = evaluation(tmp_path / name, [1, 1, 1, 0], edited | changes)
        table = pd.read_parquet(Path(folder) / "samples.parquet")
        table.assign(question_digest=table["question_digest"].replace("b", "x")).to_parquet(
            Path(folder) / "samples.parquet"
        )
        return folder

    one = evaluation(tmp_path / "one", [0, 0, 1, 0], RECORD)
    with pytest.raises(SystemExit, match=r"1 questions .*such as b"):
        main([one, other("two")])
    main([one, other("three", inputs={"tokenizer": "another"})])
    assert "prompts of 1 questions" in capsys.readouterr().out
