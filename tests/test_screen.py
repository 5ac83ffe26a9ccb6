"""What reaches the screen: nothing that a terminal obeys, and nothing that ends a run."""

import io
import re
import subprocess
import sys
from importlib import import_module

import pytest

from ablations.arguments import CommandParser
from ablations.errors import DamagedError
from ablations.screen import Screen, StatusLine, Unfailing, printable, with_status
from dapo_lit.__main__ import COMMANDS

OF_HYDRA = {"train", "evaluate", "plan", "export"}
"""Commands whose arguments are a config's; the others have a parser."""
HOSTILE = "a\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\x1bcb\r\b\x00\x85c"


def test_control_sequences_are_taken_out_and_other_text_is_left():
    assert printable(HOSTILE) == "abc"
    assert printable("tab\t, line\n, ünï, 数, \u2028") == "tab\t, line\n, ünï, 数, \u2028"
    assert str(DamagedError(f"run {HOSTILE}")) == "run abc"
    stream = io.StringIO()
    print(HOSTILE, file=Screen(stream))
    assert stream.getvalue() == "abc\n"


def test_on_a_terminal_long_lines_break_at_spaces_below_their_text_and_elsewhere_not_at_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    command = "  python -m dapo_lit.train +experiment=dapo budget.steps=3"  # stays whole, to be copied
    text = f"  policy     qwen2, 495,744 parameters\nsamples {'x' * 40}\n{command}\n"
    folded = f"  policy     qwen2, 495,744\n             parameters\nsamples\n{'x' * 40}\n{command}\n"
    for is_terminal, expected in ((True, folded), (False, text)):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        print(text, end="", file=Screen(stream))
        assert stream.getvalue() == expected


def test_a_stream_that_fails_is_said_once_and_the_program_goes_on(tmp_path):
    code = "from ablations.screen import on_screen\nwith on_screen():\n"
    code += "    [print('x' * 9000, flush=True) for _ in range(3)]; open('done', 'w').close()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True, check=False
        )
    assert done.returncode == 0
    assert done.stderr.count("warning: standard output is lost") == done.stderr.count("\n") == 1
    assert (tmp_path / "done").exists()


def test_a_program_sees_itself_that_its_reader_is_gone_after_a_command_of_which_it_was():
    code = "from ablations.screen import on_screen\nwith on_screen():\n    [print('x', flush=True) for _ in range(3)]\n"
    code += "print('y', flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        said = program.stderr.read().decode()
    assert said.count("warning: standard output is lost") == 1
    assert "\nBrokenPipeError: " in said


def test_every_command_prints_on_a_screen_and_leaves_the_streams_of_its_caller(monkeypatch):
    shown: list[type] = []

    def parse(self, *arguments):
        shown.append(type(sys.stdout))
        raise SystemExit

    monkeypatch.setattr(CommandParser, "parse_known_args", parse)
    before = sys.stdout, sys.stderr
    mains = [import_module(f"dapo_lit.{name}").main for name in COMMANDS if name not in OF_HYDRA]
    for main in mains:
        with pytest.raises(SystemExit):
            main(["--help"])
        assert (sys.stdout, sys.stderr) == before
    assert shown == [Screen] * len(mains) == [Screen] * 10


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which a test sets."""
    now = [100.0]
    monkeypatch.setattr("ablations.screen.time.monotonic", lambda: now[0])
    monkeypatch.setattr(StatusLine, "enabled", True)
    return now


def test_a_status_line_in_a_log_comes_after_five_seconds_and_then_now_and_then(clock, capsys):
    items = (clock.__setitem__(0, 100.0 + 2 * n) for n in range(60))  # two seconds each
    for _ in with_status(items, 60, "evaluation", "samples"):
        pass
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "evaluation: 3 of 60 samples, about 2 min left"
    assert lines[1:3] == [
        "evaluation: 11 of 60 samples, about 98 s left",
        "evaluation: 19 of 60 samples, about 82 s left",
    ]
    assert len(lines) == 8
    for _ in with_status([1, 2], 2, "evaluation", "samples"):
        clock[0] += 1
    assert capsys.readouterr().err == ""
    silent = StatusLine("silent")
    StatusLine.enabled = False
    clock[0] += 100
    silent.update(1, 2, "1 of 2")
    assert capsys.readouterr().err == ""


def test_on_a_terminal_the_status_line_is_rewritten_and_goes_before_anything_else_is_printed(clock, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", Unfailing(terminal))
    monkeypatch.setattr(sys, "stdout", Screen(terminal))
    line = StatusLine("step 3")
    clock[0] += 6
    line.update(2, 16, "2 of 16 updates")
    clock[0] += 0.1
    line.update(3, 16, "3 of 16 updates")  # too soon
    clock[0] += 1
    line.update(4, 16, "4 of 16 updates")
    print("warning: something")
    clock[0] += 1
    line.update(5, 16, "5 of 16 updates, with more words than a terminal of forty columns has room for")
    line.erase()
    assert shown(terminal.getvalue()) == ["warning: something", ""]
    assert "4 of 16 updates, about 21 s" in terminal.getvalue()
    assert "3 of 16" not in terminal.getvalue()
    assert max(map(len, re.split("[\r\n]", terminal.getvalue()))) < 40


def shown(text: str) -> list[str]:
    """The lines on a terminal after it got `text`."""
    lines = []
    for line in text.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    return lines
