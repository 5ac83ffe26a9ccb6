"""What reaches the screen: nothing that a terminal obeys, and nothing that ends a run."""

import io
import subprocess
import sys

from dapo_lit.errors import DamagedError
from dapo_lit.screen import Screen, printable

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
    code = "from dapo_lit.screen import install; install(); [print('x' * 9000, flush=True) for _ in range(3)]; "
    code += "open('done', 'w').close()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True, check=False
        )
    assert done.returncode == 0
    assert done.stderr.count("warning: standard output is lost") == done.stderr.count("\n") == 1
    assert (tmp_path / "done").exists()
