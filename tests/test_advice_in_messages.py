"""What a message tells to set is a key that there is, with a value that it takes.

Every `section.key=value` in the text of the three packages that is no docstring is collected. Commands of pages are
composed by tests/pages/test_docs.py, those of run.html and report.html by test_printed_commands.py, and the names that
a refused multirun is given by test_command.py.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from dapo_lit.cli.config_tree import composed_tree, plain, with_literals
from dapo_lit.config import Config
from dapo_lit.config.parsing import typed_faults

ROOT = Path(__file__).parents[1]
SECTIONS = "algorithm|task|reward|rollout|policy|trainer|evaluation|budget|logger|checkpoint|turns"
ADVICE = re.compile(rf"(?<![\w.{{])((?:{SECTIONS})(?:\.[a-z_]+)+)=([\w.+-]*\w)(?![\w{{.(])")


def texts(tree: ast.AST) -> Iterator[str]:
    """The literal texts of a module that are not statements of their own, as docstrings are."""
    stated = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in stated:
            yield node.value


@cache
def advice() -> dict[tuple[str, str], str]:
    """Key and value -> the file that says so."""
    return {
        (key, value): file.name
        for package in ("dapo_lit", "ablations", "dapo_lit_tools")
        for file in sorted((ROOT / package).rglob("*.py"))
        if ADVICE.search(source := file.read_text(encoding="utf-8"))  # most files have none, and parsing takes long
        for text in texts(ast.parse(source))
        for key, value in ADVICE.findall(text)
    }


@pytest.fixture(scope="module")
def tree():
    return composed_tree(["+experiment=four_sums"])


def test_there_is_advice_to_take():
    assert len(advice()) > 40


@pytest.mark.parametrize(("key", "value"), advice(), ids=map("=".join, advice()))
def test_what_a_message_tells_to_set_can_be_set(tree, key, value):
    changed = with_literals(tree, {key: yaml.safe_load(value)})
    assert typed_faults(plain(changed), Config) == []


def test_a_key_that_is_not_there_would_be_found(tree):
    assert typed_faults(plain(with_literals(tree, {"algorithm.clip_hihg": 1})), Config)
    assert typed_faults(plain(with_literals(tree, {"trainer.devices": "many"})), Config)
