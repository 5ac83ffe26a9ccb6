"""Rows of a long run are read from the end: a checkpoint asks for its own, however many came before."""

import json
import random
import tracemalloc
from pathlib import Path

import pytest

from ablations.files.layout import METRICS
from ablations.files.metrics_file import LONGEST_ROW, last_step, metrics_line, rows_from_the_end
from ablations.files.run_manifest import update_manifest


@pytest.mark.parametrize("torn", ["", '{"step": 900, "x'])
def test_rows_are_those_of_the_file_backwards_wherever_a_block_ends(tmp_path: Path, torn: str) -> None:
    draw = random.Random(0)
    rows = [{"step": step, "text": "é" * draw.randrange(4000)} for step in range(200)]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    assert len(content.encode()) > 5 * LONGEST_ROW
    (tmp_path / METRICS).write_text(content + torn, encoding="utf-8")
    assert [*rows_from_the_end(tmp_path)] == rows[::-1]
    assert last_step(tmp_path) == 199


def test_a_run_without_rows_has_none(tmp_path: Path) -> None:
    assert [*rows_from_the_end(tmp_path)] == []
    (tmp_path / METRICS).write_text("")
    assert last_step(tmp_path) is None


def test_a_manifest_takes_the_memory_of_a_few_rows(tmp_path: Path) -> None:
    with (tmp_path / METRICS).open("wb") as file:
        file.seek(100_000_000)  # of earlier rows
        file.write(("\n" + metrics_line({"step": 7, "x": 1.0}) + metrics_line({"step": 8, "x": 2.0})).encode())
    end_of_7 = json.loads(metrics_line({"step": 7, "x": 1.0}))["crc32"]
    tracemalloc.start()
    try:
        update_manifest(tmp_path, 7, config_hash="c0de")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert json.loads((tmp_path / "manifest.json").read_text())["row"] == end_of_7
