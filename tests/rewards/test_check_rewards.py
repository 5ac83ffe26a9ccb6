"""docs/examples/check_rewards.py scores files of answers by rules."""

import json

import pytest
from check_rewards import main

ROWS = [
    {"pred": r"\boxed{0.5}", "gold": r"\frac{1}{2}", "equal": True},
    {"pred": "The answer is 8", "gold": "2^3", "equal": True},
    {"pred": "7", "gold": "8", "equal": False},
    {"pred": "7", "gold": "7", "equal": False},  # a wrong label: shows as a false positive
    {"pred": "1", "gold": "2", "equal": True, "ambiguous": "order"},
]


def test_the_table_counts_what_is_labelled_and_prints_the_rows_that_disagree(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    assert main([str(file)]) == 0
    header, counts, *rest = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["rule", "rows", "counted", "agreement"]
    assert counts.split()[:7] == ["sympy", "5", "4", "75.0%", "1", "0", "0"]
    assert [line.split() for line in rest[1:2]] == [["4", "right", "wrong", "7", "7"]]


@pytest.mark.parametrize("line", ["{", "[1]", '{"pred": 3, "gold": "3"}', '{"pred": "3", "gold": "3", "equal": "yes"}'])
def test_a_bad_row_is_named_by_file_and_line(tmp_path, capsys, line):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"pred": "1", "gold": "1"}\n' + line + "\n")
    assert main([str(path)]) == 2
    assert "bad.jsonl, line 2: " in capsys.readouterr().err


def test_the_equivalence_file_is_scored_with_at_least_97_percent_agreement_and_no_false_positive(data_file, capsys):
    assert main([str(data_file("equivalence.jsonl"))]) == 0
    counts = capsys.readouterr().out.splitlines()[1].split()
    assert float(counts[3].rstrip("%")) >= 97.0
    assert counts[4] == "0"
