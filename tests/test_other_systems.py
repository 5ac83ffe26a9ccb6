"""The first commands where Python lacks what only Linux has. The suite runs on Linux, so it is taken away here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SMALL

LACKS = Path(__file__).with_name("other_systems")


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(LACKS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )


def test_what_only_linux_has_is_taken_away(tmp_path):
    """Without this the next test would hold for nothing."""
    (tmp_path / "look.py").write_text(
        "import ctypes, os, pathlib\n"
        "print(hasattr(os, 'sched_getaffinity'), hasattr(ctypes.CDLL(None), 'prctl'))\n"
        "print(pathlib.Path('/proc/self').exists())\n"
        "open('/proc/cpuinfo')\n"
    )
    looked = run(tmp_path, "look")
    assert looked.stdout == "False False\nFalse\n"
    assert "FileNotFoundError" in looked.stderr


@pytest.mark.usefixtures("cache")
def test_the_first_commands_run(tmp_path):
    small = (*SMALL, "budget.steps=2", "runs_dir=runs")
    arms = ("study.pilot=true", "study.seeds=[0]", "study.underpowered=true")
    for words in (
        ("dapo_lit.train", *small, "study_name=alone"),
        ("dapo_lit.train", "-m", *small, "+study=placebo", *arms, "study_name=two"),
        ("dapo_lit.doctor",),
        ("dapo_lit.report", "runs/two"),
    ):
        done = run(tmp_path, *words)
        assert done.returncode == 0, done.stderr
