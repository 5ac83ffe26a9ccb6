"""The benchmark of the algorithms, at a size of seconds."""

import json
import subprocess
import sys
from pathlib import Path

from command_line import SMALL

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "algorithms.py"


def test_it_trains_each_algorithm_and_writes_what_they_came_to(tmp_path, cache):
    small = [option for option in SMALL if not option.startswith(("budget", "logger"))]
    command = [sys.executable, SCRIPT, "--algorithms", "grpo", "gspo", "--steps", "2", *small]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "algorithms.json").read_text())["results"]
    assert [(r["algorithm"], r["steps"]) for r in results] == [("grpo", 2), ("gspo", 2)]
    assert all(0 <= r["accuracy_after"] <= 1 and r["tokens_generated"] > 0 for r in results)
    assert "gspo" in done.stdout
