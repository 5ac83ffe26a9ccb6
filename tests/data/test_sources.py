"""Rows to problems: every format gives the same ones, and a bad row is named with file, line and reason."""

import csv
import json
from datetime import date
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError, load_problems, load_with_selection

SUM = {"problem": "What is 2 + 3?", "answer": "5"}
PRODUCT = {"problem": "What is 4 * 2?", "answer": "8"}
ROWS = [
    {"id": "a", "problem": 'Say "x, y"\nand $\\frac{1}{2}$', "answer": "1/2", "level": "3"},
    {"id": "b", "problem": "Wie groß ist 2 + 3?", "answer": "5", "level": "1"},
]


def message_of(path: str, **options: int) -> str:
    with pytest.raises(DataError) as caught:
        load_problems(path, **options)
    return str(caught.value)


def test_jsonl_csv_and_parquet_of_the_same_rows_give_the_same_problems(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")

    expected = [Problem(row["id"], row["problem"], row["answer"], {"level": row["level"]}) for row in ROWS]
    for name in ("rows.jsonl", "rows.csv", "rows.parquet"):
        assert load_problems(str(tmp_path / name)) == expected, name


def test_numbers_become_text_and_a_whole_float_loses_its_point(write_jsonl):
    answers = [72, 72.0, -0.5, 10**400, " 7 "]
    path = write_jsonl(*({"problem": "?", "answer": answer} for answer in answers))
    assert [p.answer for p in load_problems(path)] == ["72", "72", "-0.5", "1" + "0" * 400, "7"]


def test_a_number_is_the_same_reference_in_every_type_and_format(tmp_path, write_jsonl):
    numbers, wanted = [42.0, -3.0, 0.1, 2.5], ["42", "-3", "0.1", "2.5"]
    files = [write_jsonl(*({"problem": "?", "answer": number} for number in numbers))]
    frame = pd.DataFrame({"problem": "?", "answer": numbers})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    files.append(str(tmp_path / "rows.csv"))
    for dtype in ("float16", "float32", "float64"):
        frame.astype({"answer": dtype}).to_parquet(tmp_path / f"{dtype}.parquet")
        files.append(str(tmp_path / f"{dtype}.parquet"))
    for kind in (pa.decimal128(10, 2), pa.decimal256(60, 40)):
        decimals = pa.array([Decimal(str(number)) for number in numbers], kind)
        pq.write_table(pa.table({"problem": ["?"] * 4, "answer": decimals}), tmp_path / f"{kind.bit_width}.parquet")
        files.append(str(tmp_path / f"{kind.bit_width}.parquet"))
    for file in files:
        assert [p.answer for p in load_problems(file)] == wanted, file


def test_float32_inside_of_other_values_is_shortest_too_and_text_with_a_point_stays(tmp_path, write_jsonl):
    nested = pa.array([{"levels": [0.1, None]}], pa.struct({"levels": pa.list_(pa.float32())}))
    target = pa.array([{"value": 0.3}], pa.struct({"value": pa.float32()}))
    pq.write_table(pa.table({"problem": ["?"], "nested": nested, "target": target}), tmp_path / "rows.parquet")
    columns = {"answer": "target.value"}
    (problem,) = load_with_selection(str(tmp_path / "rows.parquet"), "train", columns=columns)[0]
    assert (problem.answer, problem.meta["nested"]) == ("0.3", {"levels": [0.1, None]})
    assert load_problems(write_jsonl({"problem": "?", "answer": "42.0"}))[0].answer == "42.0"


def test_a_problem_without_id_is_named_by_file_and_row_whatever_the_limit(write_jsonl):
    path = write_jsonl(SUM, PRODUCT, SUM, name="sums.jsonl")
    assert [p.id for p in load_problems(path)] == ["sums-0", "sums-1", "sums-2"]
    assert [p.id for p in load_problems(path, limit=2)] == ["sums-0", "sums-1"]


WORKED = "He has 540 * 2 = <<540*2=1080>>1080."


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"question": "How many?", "answer": f"{WORKED}\n#### 1,080"},
            Problem("rows-0", "How many?", "1080", {"worked_solution": WORKED}),
        ),
        (
            {"problem": "How many?", "answer": f"{WORKED}\n#### 1,080"},
            Problem("rows-0", "How many?", "1080", {"worked_solution": WORKED}),
        ),
        (
            {"prompt": [{"role": "user", "content": "How many?"}], "solution": "so #### 1, 2", "level": 1},
            Problem("rows-0", "How many?", "1, 2", {"worked_solution": "so", "level": 1}),
        ),
        (
            {"problem": "Write a heading", "answer": "#### Title"},
            Problem("rows-0", "Write a heading", "#### Title"),
        ),
        (
            {"ID": "2024-I-1", "Problem": "?", "Answer": 204, "Solution": "..."},
            Problem("2024-I-1", "?", "204", {"Solution": "..."}),
        ),
    ],
    ids=[
        "GSM8K as published",
        "its answers under other names",
        "as in TRL's data",
        "hashes of one's own",
        "columns in another case",
    ],
)
def test_a_row_is_read_as_it_is_meant(write_jsonl, row, problem):
    assert load_problems(write_jsonl(row)) == [problem]


BAD_LINES = {
    "{'problem': 'single quotes'}": "not valid JSON",
    '{"problem": "What is 2 + 3?"}': "has no `answer`",
    '{"problm": "What is 2 + 3?", "answer": "5"}': "did you mean `problm`?",
    '{"problem": null, "answer": "5"}': "`problem` is null",
    '{"problem": ["What is 2 + 3?"], "answer": "5"}': '`problem` must be text, or a list of {"role": "user"',
    '{"problem": "?", "answer": ""}': "`answer` is empty",
    '{"problem": "?", "answer": ["5", "five"]}': '`answer` is ["5", "five"]',
    '{"problem": "?", "answer": true}': "`answer` is true",
    '{"problem": "?", "answer": 1e999}': "`answer` is Infinity",
    '{"problem": "?", "answer": "5", "id": 1.5}': "`id` is 1.5",
    '{"problem": "\\ud800", "answer": "5"}': "lone surrogate",
    '{"problem": "?", "answer": ' + "9" * 5000 + "}": "not readable as JSON",
    '{"problem": "?", "answer": ' + "[" * 100_000: "not readable as JSON",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=[line[:40] for line in BAD_LINES])
def test_a_bad_line_is_named_with_its_file_its_number_and_the_reason(write_jsonl, line, reason):
    message = message_of(write_jsonl(SUM, "", line, PRODUCT, name="bad.jsonl"))
    assert "bad.jsonl, line 3: " in message
    assert reason in message


FILES: dict[str, tuple[str, bytes]] = {
    "rows.jsonl, line 2": ("rows.jsonl", json.dumps(SUM).encode() + b'\n{"problem": "gro\xdf", "answer": "5"}\n'),
    "rows.csv, line 4: 3": ("rows.csv", b'problem,answer\n"two\nlines",5\nWhat is 2, or 3?,5\n'),
    "rows.csv, line 2": ("rows.csv", b'problem,answer\n"never closed,5\n'),
    "rows.parquet": ("rows.parquet", b"not parquet at all"),
    "rows.jsonl": ("rows.jsonl", b"\n\n"),
    ".jsonl, .parquet, .csv": ("rows.xlsx", b""),
}


@pytest.mark.parametrize("named", FILES)
def test_a_file_that_cannot_be_read_is_named_with_the_place(tmp_path, named):
    name, content = FILES[named]
    (tmp_path / name).write_bytes(content)
    assert named in message_of(str(tmp_path / name))


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.json", "rows.parquet"])
def test_a_name_that_occurs_twice_is_refused_as_which_one_is_meant_is_not_known(tmp_path, name):
    row = '{"problem": "2 + 3?", "answer": "5", "answer": "6"}'
    texts = {"csv": "problem,answer,answer\n2 + 3?,5,6\n", "jsonl": row, "json": f"[{row}]"}
    file = tmp_path / name
    if name == "rows.parquet":
        pq.write_table(pa.table([["2 + 3?"], ["5"], ["6"]], names=["problem", "answer", "answer"]), file)
    else:
        file.write_text(texts[name.removeprefix("rows.")])
    message = message_of(str(file))
    assert message.startswith(str(file))
    assert "has `answer` twice" in message


def test_columns_of_a_spreadsheet_that_have_no_name_are_no_repetition(tmp_path):
    (tmp_path / "rows.csv").write_text("problem,answer,,\n2 + 3?,5,,\n")
    assert load_problems(str(tmp_path / "rows.csv")) == [Problem("rows-0", "2 + 3?", "5")]


def test_a_row_of_parquet_is_named_by_its_number_and_an_id_by_both_places(tmp_path, write_jsonl):
    pq.write_table(pa.Table.from_pylist([SUM, {"problem": "?", "answer": None}]), tmp_path / "rows.parquet")
    assert "rows.parquet, row 2: " in message_of(str(tmp_path / "rows.parquet"))
    message = message_of(write_jsonl({**SUM, "id": "x"}, {**PRODUCT, "id": "y"}, {**SUM, "id": "x"}))
    assert "rows.jsonl, line 3" in message
    assert "'x'" in message
    assert "rows.jsonl, line 1" in message


def test_bad_rows_with_one_fault_are_one_line_that_says_how_many_and_each_other_fault_has_its_own(write_jsonl):
    many = message_of(write_jsonl(SUM, *[{"problem": "?"}] * 25))
    assert many.count("\n") == 0
    assert "rows.jsonl, line 2: " in many
    assert many.endswith("(and line 3, line 4, line 5 and 21 more, of 26 rows)")
    wrong = [{"problem": "?", "answer": {"value": n}} for n in range(3)]
    first, second, count = message_of(write_jsonl(SUM, *wrong, {"problem": "", "answer": "5"})).splitlines()
    assert first.endswith("(and line 3, line 4, of 5 rows)")
    assert "line 5: `problem` is empty" in second
    assert "4 of 5 rows" in count


def test_a_utf_16_file_is_one_line_that_names_the_file(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(SUM) + "\n" + json.dumps(PRODUCT), encoding="utf-16")
    assert message_of(str(tmp_path / "rows.jsonl")).startswith(f"{tmp_path}/rows.jsonl: UTF-16; ")


def test_values_that_json_does_not_have_become_text_as_soon_as_they_are_read(tmp_path):
    columns = {
        "problem": ["1 + 1"],
        "answer": [Decimal("2.50")],
        "stamp": pa.array([pd.Timestamp("2026-01-02 03:04:05")], pa.timestamp("ns")),
        "took": pa.array([pd.Timedelta(seconds=90)], pa.duration("ns")),
        "day": pa.array([date(2026, 1, 2)]),
        "nested": [{"raw": "½".encode(), "level": 3}],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    (problem,) = load_problems(str(tmp_path / "rows.parquet"))
    assert problem.answer == "2.5"
    assert problem.meta == json.loads(json.dumps(problem.meta))
    assert problem.meta["stamp"] == "2026-01-02T03:04:05"
    assert problem.meta["nested"] == {"raw": "½", "level": 3}


def test_binary_columns_are_read_as_their_text_and_bytes_that_are_none_are_no_problem_and_no_answer(tmp_path):
    file = tmp_path / "rows.parquet"
    rows = [{key: text.encode() for key, text in {**row, "note": "π"}.items()} for row in (SUM, PRODUCT)]
    pq.write_table(pa.Table.from_pylist(rows), file)
    assert load_problems(str(file)) == [
        Problem(f"rows-{number}", row["problem"], row["answer"], {"note": "π"})
        for number, row in enumerate((SUM, PRODUCT))
    ]
    for column in ("problem", "answer"):
        pq.write_table(pa.Table.from_pylist([rows[0], {**rows[1], column: b"\xff"}]), file)
        assert f'{file}, row 2: `{column}` is {{"bytes": "ff"}}' in message_of(str(file))
    pq.write_table(pa.Table.from_pylist([{**row, "image": {"raw": b"\xff"}} for row in rows]), file)
    assert load_problems(str(file))[1].meta == {"note": "π", "image": {"raw": {"bytes": "ff"}}}
