"""What a run says goes through `logging`, so that a program that uses the package decides about it."""

import ast
import logging
import os
import signal
import subprocess
import sys

import pytest
from test_rooms import BELOW, FILES, PACKAGE, TOOLS

from dapo_lit.cli.command import in_hydra, run_command
from dapo_lit.config import Config
from dapo_lit.log import log
from dapo_lit.preflight.table import Finding, run_checks

PRINTS = {
    "dapo_lit/log.py", "ablations/screen.py",  # standard output itself
    "dapo_lit_tools/planning/plan.py",  # what the command `plan` was asked for
    "dapo_lit/runs/loggers.py",  # the line a step, which logger.progress asks for
    "dapo_lit/ranks/watch.py",  # the last words of a process that is ended
}  # fmt: skip
"""Files below the command line that print."""


def test_below_the_command_line_nothing_prints():
    own = ("log", "screen")
    places = (PACKAGE, PACKAGE / "cli", TOOLS / "commands", *BELOW.values(), BELOW["ablations"] / "commands")
    commands = {file for file in FILES if file.parent in places and file.stem not in own}
    prints = {
        file.relative_to(PACKAGE.parent).as_posix()
        for file in FILES
        if file not in commands
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert prints == PRINTS


def test_a_message_is_printed_as_it_is_and_a_warning_says_so_behind_its_indent(capsys):
    run_checks({"rule": lambda: Finding("fits", warnings=("but not well",), shown=("an example",))})
    title, *lines = capsys.readouterr().out.splitlines()
    assert "first step" in title
    assert lines == ["  rule       fits", "    an example", "    warning: but not well"]


@pytest.mark.parametrize(("level", "said"), [("WARNING", "    warning: but not well\n"), ("ERROR", "")])
def test_a_program_silences_what_it_does_not_want(capsys, monkeypatch, level, said):
    monkeypatch.setattr(log, "level", log.level)
    logging.getLogger("dapo_lit").setLevel(level)
    run_checks({"rule": lambda: Finding("fits", warnings=("but not well",))})
    assert capsys.readouterr().out == said
    logging.getLogger("dapo_lit").setLevel("INFO")


def test_hydra_leaves_the_logger_on(monkeypatch, capsys):
    """A multirun is Hydra's, which sets up logging by its own config: the checks of its runs are shown as well."""
    monkeypatch.setattr(sys, "argv", ["train"])
    assert in_hydra(lambda tree: None, ["--cfg", "job"], "config") == 0
    capsys.readouterr()
    run_checks({"rule": lambda: Finding("fits")})
    assert "  rule       fits" in capsys.readouterr().out


def test_a_multirun_leaves_a_program_its_arguments_its_environment_its_streams_and_its_root_logger(
    monkeypatch, tmp_path
):
    def state() -> tuple[object, ...]:
        root = logging.getLogger()
        return [*sys.argv], {**os.environ}, sys.stdout, sys.stderr, root.level, [*root.handlers]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "-m", "+experiment=four_sums", "seed=1,2"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before, seen = state(), list[int]()
    assert run_command(lambda config, overrides: seen.append(config.seed), Config, "config") == 0
    assert seen == [1, 2]
    assert state() == before


def test_a_program_that_asks_for_help_lives_on_when_it_writes_to_a_process_that_is_dead(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train"])
    before = signal.getsignal(signal.SIGPIPE)
    assert in_hydra(lambda tree: None, ["--cfg", "job"], "config") == 0
    assert signal.getsignal(signal.SIGPIPE) == before == signal.SIG_IGN


def test_help_of_which_the_reader_has_enough_ends_without_a_word():
    command = [sys.executable, "-m", "dapo_lit.train", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as helping:
        helping.stdout.close()
        assert helping.stderr.read() == b""
    assert helping.returncode in (0, -signal.SIGPIPE)
