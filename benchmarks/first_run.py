"""How long a newcomer waits for README's first command: its first line, the first point of a curve, its end.

    python benchmarks/first_run.py [--out benchmarks/results/first_run.json]

Runs the command of `make train` in an empty folder with an empty cache. Wall time depends on what else the machine
does; processor time hardly does.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = {"first line": 5.0, "first point": 20.0, "whole run": 90.0}
"""Seconds of wall time on two idle cores."""


def arguments() -> list[str]:
    """Those of `make train`, as the Makefile has them."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(r"^train:.*\n\t\$\(BIN\)/python -m dapo_lit\.train (.*) \$\(ARGS\)$", text, re.MULTILINE)
    return [word.strip("'") for word in found.split()]


def measured(more: list[str]) -> dict[str, float]:
    """Seconds from the command to each event, and processor seconds of the whole."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="first_run_") as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment |= {"DAPO_LIT_CACHE": f"{folder}/cache"}
        started = time.perf_counter()
        command = [sys.executable, "-m", "dapo_lit.train", *arguments(), *more]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8")
        assert process.stdout is not None
        for line in process.stdout:
            event = "first point" if re.match(r"step +1/", line) else "first line"
            if event not in found:
                found[event] = time.perf_counter() - started
                found[f"{event}, processor"] = processor_s(process.pid)
        if process.wait():
            raise SystemExit(f"exit code {process.returncode}")
        found["whole run"] = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found | {"whole run, processor": used.ru_utime + used.ru_stime}


def processor_s(pid: int) -> float:
    """Processor seconds of a running process so far (Linux)."""
    # Behind the name, which is in brackets and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="further settings, such as budget.steps=2")
    options = parser.parse_args()
    found = {name: round(seconds, 1) for name, seconds in measured(options.more).items()}
    for name, seconds in found.items():
        print(f"{name:23} {seconds:6.1f} s" + (f"   (at most {TARGETS[name]:g})" if name in TARGETS else ""))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
