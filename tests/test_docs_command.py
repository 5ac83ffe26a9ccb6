"""`dapo-lit docs` finds a page by what a message calls it, and shows it as it is read."""

import re
from pathlib import Path

import pytest

from dapo_lit_tools.commands.docs import as_text, found, main, pages

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("rewards", "rewards"),
        ("docs/tutorials/cluster.md", "tutorials/cluster"),
        ("docs/tasks.md#choosing-problems", "tasks"),
        ("cluster", "tutorials/cluster"),
        ("clusters", None),
        ("../README", None),
    ],
)
def test_a_page_is_found_by_its_name_by_its_path_and_by_the_end_of_it(words: str, name: str | None) -> None:
    assert found(words) == name


def test_every_page_that_the_code_names_is_there() -> None:
    texts = [file.read_text(encoding="utf-8") for file in ROOT.glob("dapo_lit*/**/*.py")]
    named = {name for text in texts for name in re.findall(r"\bdocs/[a-z_/]+\.md\b", text)}
    assert len(named) > 10
    assert [name for name in sorted(named) if found(name) is None] == []


def test_a_page_is_printed_without_the_marks_of_what_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert "<!-- n:" in pages()["tutorials/ablate"].read_text(encoding="utf-8")
    assert main(["ablate"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Ablate a technique\n")
    assert "<!--" not in shown
    assert shown == as_text(pages()["tutorials/ablate"]).rstrip() + "\n"


def test_without_a_name_the_pages_are_listed_and_a_slip_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.split() == ["tutorials/gpu", "A", "GPU"]]
    assert Path(lines[-1].split()[1]).is_file()
    assert main(["clister"]) == 2
    assert capsys.readouterr().err == "error: clister: no such page; did you mean cluster?\n"
