"""metrics.jsonl: what is written, and what is read of a file that was cut or altered."""

import json
from zlib import crc32

from ablations.files.metrics_file import read_metrics
from dapo_lit.runs.run_folder import open_run


def test_a_value_that_is_not_finite_is_written_as_null_and_its_key_is_named(compose):
    folder = open_run(compose(), [], "dapo")
    folder.append_row({"step": 1, "a": float("nan"), "b": float("inf"), "c": None, "d": 0.5})
    row = {"step": 1, "a": None, "b": None, "c": None, "d": 0.5, "not_finite": ["a", "b"]}
    assert json.loads(folder.metrics.read_text()) == {**row, "crc32": f"{crc32(json.dumps(row).encode()):08x}"}


def test_a_torn_last_row_is_ended_so_that_the_next_one_can_be_read(compose):
    folder = open_run(compose(), [], "dapo")
    folder.append_row({"step": 1})
    with folder.metrics.open("a") as file:
        file.write('{"step": 2, "roll')
    resumed = open_run(compose("resume=auto"), [], "dapo")
    resumed.append_row({"step": 2})
    lines = resumed.metrics.read_text().splitlines()
    assert [json.loads(lines[0])["step"], json.loads(lines[2])["step"]] == [1, 2]


def test_a_flipped_byte_of_a_row_is_found_wherever_it_is(compose):
    folder = open_run(compose(), [], "dapo")
    for step in (1, 2, 3):
        folder.append_row({"step": step, "rollout/accuracy": 0.25, "optim/lr": None})
    whole = folder.metrics.read_bytes()
    assert list(read_metrics(folder.path).table.index) == [1, 2, 3]
    line = len(whole) // 3
    for place in range(line, 2 * line - 1):  # the second row; its last byte is the end of the line
        for change in (1, 4):  # another digit, another letter
            folder.metrics.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
            found = read_metrics(folder.path)
            assert list(found.table.index) == [1, 3], whole[place : place + 9]
            assert found.faults[0].startswith("line 2 "), found.faults
            assert list(found.table.columns) == ["rollout/accuracy", "optim/lr"]
