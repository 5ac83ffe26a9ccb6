"""A .json file with an array of rows is read like JSONL, row by row."""

import json

import pytest

from ablations.errors import DataError
from dapo_lit.data.rows import BadRows, read_rows


def test_an_array_of_rows_is_read_and_a_row_that_is_no_object_is_named(tmp_path):
    file, bad = tmp_path / "rows.json", BadRows()
    rows = [{"problem": "1 + 1?", "answer": "2"}, 5, {"problem": "2 + 2?", "answer": "4"}]
    file.write_text("\n " + json.dumps(rows), encoding="utf-8-sig")
    assert [row.fields["answer"] for row in read_rows(file, bad)] == ["2", "4"]
    with pytest.raises(DataError, match=r"rows.json, row 2: a JSON int"):
        bad.check(2)
    file.write_text("\n".join(json.dumps(row) for row in rows[::2]))
    assert len([*read_rows(file, BadRows())]) == 2
