"""benchmarks/roads.py counts what a command and the processes that it starts have run."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # appended: a benchmark may have the name of a library

import roads
from roads import ROOT, Road, RoadError, measured, shares, source

DOCS = str(ROOT / "dapo_lit_tools/commands/docs.py")


def test_lines_of_a_file_are_told_apart_by_whether_a_function_holds_them(tmp_path):
    file = tmp_path / "code.py"
    file.write_text('"""A file."""\n\nA = 1\n\n\ndef f():\n    """Says nothing."""\n    return [\n        A,\n    ]\n')
    found = source(str(file))
    assert found.lines == 10
    assert found.statements == {3, 6, 8}
    assert found.inside == {8}
    assert measured({str(file): {3, 6}}) == {
        "files_called": 0, "lines_called": 0, "files_imported": 1, "lines_imported": 10, "executable_imported": 3,
    }  # fmt: skip
    assert measured({str(file): {3, 6, 8}})["lines_called"] == 1


def test_a_command_is_traced_in_its_own_process_and_a_failed_one_is_named(tmp_path):
    road = Road("reader", tmp_path / "reader")
    assert road("docs tutorials/cluster").startswith("# ")
    said = source(DOCS).inside
    assert len(road.lines[DOCS] & said) > 5
    assert not [file for file in road.lines if "/lit/" in file or not file.endswith(".py")]
    assert measured(road.lines)["lines_called"] < measured(road.lines)["executable_imported"]
    with pytest.raises(RoadError, match="exit code 2, not 0"):
        road("docs no_such_page")


def test_the_share_of_a_building_is_of_all_its_files():
    here = Path(DOCS)
    part = shares("dapo_lit_tools", {DOCS: set(source(DOCS).statements)})
    assert part["files"] == len([*(ROOT / "dapo_lit_tools").rglob("*.py")])
    assert part["reached"] == len(source(DOCS).statements) / part["executable"]
    assert here.relative_to(ROOT).as_posix() not in part["unreached"]
    assert "dapo_lit_tools/commands/plan.py" in part["unreached"]


def test_a_road_that_was_walked_is_not_walked_again(tmp_path):
    walked: list[str] = []

    def goes(road: Road) -> None:
        walked.append(road.name)
        road.lines[DOCS] = {1, 2}

    for _ in range(2):
        assert roads.walked("somewhere", goes, tmp_path).lines == {DOCS: {1, 2}}
    assert walked == ["somewhere"]


def test_what_the_roads_start_from_is_in_the_checkout():
    text = Path(roads.__file__).read_text(encoding="utf-8")
    named = re.findall(r'ROOT / "([\w./]+)"|\{ROOT\}/([\w./]+)', text)
    assert len(named) > 3
    assert [path for pair in named if not (ROOT / (path := "".join(pair))).exists()] == []
