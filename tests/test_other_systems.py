"""The first commands where Python lacks what only Linux has. The suite runs on Linux, so it is taken away here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SMALL

LACKS = Path(__file__).with_name("other_systems")


def run(cwd: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(LACKS), os.environ.get("PYTHONPATH", "")])
    command, without = [sys.executable, "-c", script, *arguments], os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=without, capture_output=True, text=True)


ONE_AFTER_ANOTHER = """
import json, runpy, sys
for module, *arguments in map(json.loads, sys.argv[1:]):
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            print(sys.argv, "ended with", ended.code, file=sys.stderr)
            raise
    print("ended:", module)
"""
"""Commands as `python -m` runs them, all in one process: what they import takes most of their time."""


def test_what_only_linux_has_is_taken_away(tmp_path):
    """Without this the next test would hold for nothing."""
    looked = run(
        tmp_path,
        "import ctypes, os, pathlib\n"
        "print(hasattr(os, 'sched_getaffinity'), hasattr(ctypes.CDLL(None), 'prctl'))\n"
        "print(pathlib.Path('/proc/self').exists())\n"
        "open('/proc/cpuinfo')\n",
    )
    assert looked.stdout == "False False\nFalse\n"
    assert "FileNotFoundError" in looked.stderr


@pytest.mark.usefixtures("cache")
def test_the_first_commands_run(tmp_path):
    small = (*SMALL, "budget.steps=2", "runs_dir=runs")
    arms = ("study.pilot=true", "study.seeds=[0]", "study.underpowered=true")
    words = (
        ("dapo_lit.train", *small, "study_name=alone"),
        ("dapo_lit.train", "-m", *small, "+study=placebo", *arms, "study_name=two"),
        ("dapo_lit.doctor",),
        ("dapo_lit.report", "runs/two"),
    )
    done = run(tmp_path, ONE_AFTER_ANOTHER, *map(json.dumps, words))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nended: ") == len(words)
    assert (tmp_path / "runs" / "two" / "report" / "report.html").is_file()
