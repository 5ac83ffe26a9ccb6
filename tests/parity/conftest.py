"""Prints the table of differences at the end of a run, and writes it into the file named by --table."""

from importlib.metadata import version
from pathlib import Path

import pytest
from comparison import ROWS, markdown, write


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", type=Path, help="file of the table, rewritten if every test ran and passed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if not ROWS:
        return
    heading = ", ".join(f"{name} {version(name)}" for name in ("verl", "trl", "torch", "transformers")) + ", on a CPU:"
    terminalreporter.write_line(f"\n{heading}\n\n{markdown()}")
    page = config.getoption("--table")
    if page is None:
        return
    if exitstatus == 0 and not any(terminalreporter.stats.get(left_out) for left_out in ("skipped", "deselected")):
        write(page, heading)
    else:
        terminalreporter.write_line(f"\n{page} is left as it is, because a test failed or did not run")
