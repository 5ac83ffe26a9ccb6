"""The examples of docs/tasks.md work as printed."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"
BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


def test_every_example_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    for block in blocks:
        if block["title"]:
            Path(block["title"]).parent.mkdir(exist_ok=True)
            Path(block["title"]).write_text(block["body"])
    python = [block["body"] for block in blocks if block["language"] == "python"]
    assert len(python) >= 2
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner()
    for number, body in enumerate(python):
        example = doctest.DocTestParser().get_doctest(body, names, f"example {number}", str(PAGE), 0)
        report: list[str] = []
        runner.run(example, out=report.append, clear_globs=False)
        names.update(example.globs)
        assert not report, "".join(report)
