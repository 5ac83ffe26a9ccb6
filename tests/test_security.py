"""SECURITY.md is held by tests: each of its sentences names one, each command has a row in its table of threats."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_ending import CASES

import ablations.__main__ as by_itself
from dapo_lit.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
UNTESTED = {
    "Each row of the tables is one sentence": "how to read the page",
    "**Everything in a run folder": "the sum of its table",
    "The servers of `rollout.vllm.placement=server`": "why there is a table",
    "Traffic is not encrypted": "what does not hold",
    "What each command reads": "how to read the table",
    "Report a hole privately": "for people",
}
"""Paragraphs that promise nothing by themselves."""


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """The first heading of each table, and the cells of its rows."""
    for block in PAGE.split("\n\n"):
        lines = block.strip().splitlines()
        if lines[0].startswith("|"):
            cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
            yield cells[0][0], cells[2:]


ROWS = [row for _, rows in tables() for row in rows]


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_a_sentence_names_tests_that_exist(row: list[str]) -> None:
    named = NODE.findall(row[-1])
    assert named, f"{row[0]}: names no test"
    assert NODE.sub("", row[-1]).strip(", ") == ""
    assert all(". " not in cell for cell in row), f"{row[0]}: one sentence a row, so that each has its test"
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name.startswith("test_"), name
        assert name in functions, f"{file} has no test {name}"


def test_a_paragraph_outside_the_tables_promises_nothing() -> None:
    blocks = [block.strip() for block in PAGE.split("\n\n")]
    prose = [block for block in blocks if not block.startswith(("|", "#"))]
    assert [block for block in prose if not block.startswith(tuple(UNTESTED))] == []
    assert len(prose) == len(UNTESTED)


def test_every_command_has_a_row_in_the_table_of_threats() -> None:
    rows = dict(tables())["command"]
    assert [row[0].strip("`") for row in rows] == list(dict.fromkeys(row[0].strip("`") for row in rows))
    assert {row[0].strip("`") for row in rows} == COMMANDS.keys() | by_itself.COMMANDS.keys()


def test_every_command_that_starts_another_is_ended_in_a_test() -> None:
    starts = {row[0].strip("`"): row[2] for row in dict(tables())["command"] if row[2] != "nothing"}
    ended = {case.module.removeprefix("dapo_lit.") for case in CASES.values()}
    # One command is ended for all that start the reader of models alone.
    assert {name for name, what in starts.items() if what != "a reader of models"} == ended - {"plan"}
    assert starts["plan"] == "a reader of models"
