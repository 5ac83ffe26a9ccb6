"""Text files are UTF-8 under any locale: no call leaves the encoding to the machine."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dapo_lit

ROOT = Path(dapo_lit.__file__).parent.parent
FILES = sorted(
    file
    for folder in (
        "dapo_lit",
        "dapo_lit_tools",
        "ablations",
        "math_answers",
        "benchmarks",
        "docs/examples",
        "docs/site",
    )
    for file in (ROOT / folder).rglob("*.py")
)


def left_to_the_locale(source: str) -> list[int]:
    """Lines that read or write text without naming its encoding."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _is_text(call) and "encoding" not in {k.arg for k in call.keywords}]


def _is_text(call: ast.Call) -> bool:
    """True for `read_text`, `write_text`, `open` in a text mode and processes with text=True."""
    name = getattr(call.func, "attr", "")
    if name in ("read_text", "write_text"):
        return True
    if any(keyword.arg == "text" and getattr(keyword.value, "value", None) is True for keyword in call.keywords):
        return True
    builtin = isinstance(call.func, ast.Name) and call.func.id == "open"
    modes = [getattr(node, "value", None) for node in call.args[int(builtin) :][:1]]
    modes += [getattr(keyword.value, "value", None) for keyword in call.keywords if keyword.arg == "mode"]
    is_text = all(isinstance(mode, str) and "b" not in mode for mode in modes)
    return is_text and (builtin or (name == "open" and bool(modes)))  # `engine.open(sampling)` has no mode


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("path.read_text()", True),
        ("path.read_text(encoding='utf-8')", False),
        ("path.write_text(content)", True),
        ("write_text(path, content)", False),
        ("open(path)", True),
        ("open(path, 'w')", True),
        ("path.open('a')", True),
        ("path.open(mode='r')", True),
        ("open(path, 'rb')", False),
        ("path.open('ab')", False),
        ("engine.open(sampling)", False),
        ("os.open(path, os.O_RDONLY)", False),
        ("run(command, text=True)", True),
        ("run(command)", False),
    ],
)
def test_calls_that_leave_the_encoding_to_the_locale_are_found(source, text):
    assert bool(left_to_the_locale(source)) == text


def test_every_text_file_is_read_and_written_as_utf_8():
    found = {str(file.relative_to(ROOT)): left_to_the_locale(file.read_text(encoding="utf-8")) for file in FILES}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_a_command_works_in_a_locale_that_knows_ascii_only(tmp_path):
    study = ROOT / "experiments" / "dynamic_sampling_sparse" / "runs"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dapo_lit.report", str(study), "--output", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **ascii_only}, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert "–" in (tmp_path / "report.html").read_text(encoding="utf-8")


def splits_json(file: Path) -> list[str]:
    """Statements that call `str.splitlines` on a file of JSON."""
    statements = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.stmt)]
    simple = [ast.unparse(node) for node in statements if not hasattr(node, "body")]
    heads = [ast.unparse(node.iter) for node in statements if isinstance(node, ast.For)]
    return [text for text in [*simple, *heads] if "read_text" in text and "splitlines" in text and "json" in text]


def test_lines_of_json_end_at_line_feeds_only():
    """`str.splitlines` also ends a line at characters that may stand inside a text of JSON, such as U+2028."""
    named = [file for file in FILES if "splitlines" in file.read_text(encoding="utf-8")]
    found = {str(file.relative_to(ROOT)): splits_json(file) for file in named}
    assert {file: statements for file, statements in found.items() if statements} == {}
