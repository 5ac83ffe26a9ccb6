"""How long a newcomer waits for README's two commands (first line, first point of a curve, end) and what the second
finds.

    python benchmarks/first_run.py [--out benchmarks/results/first_run.json]

Runs them one after the other in an empty folder with an empty cache, and the second to its verdict: five minutes of
processor time. Wall time depends on what else the machine does (its load is in the result), processor time hardly.
"""

import argparse
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGETS = {"first": {"first_line": 5.0, "first_point": 20.0, "whole": 90.0}, "second": {"whole": 100.0}}
"""Seconds of wall time on two idle cores."""


def first_command() -> list[str]:
    """The arguments of `make train`, as the Makefile has them."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(r"^train:.*\n\t\$\(BIN\)/python -m dapo_lit\.train (.*) \$\(ARGS\)$", text, re.MULTILINE)
    return shlex.split(found)


def second_command() -> list[str]:
    """The arguments of README's second command."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\.venv/bin/python -m dapo_lit\.train (-m .*)$", text, re.MULTILINE)
    return shlex.split(found[0])


def measured(arguments: list[str], folder: Path) -> dict[str, float]:
    """Seconds from the command to each event, processor seconds of the whole, and how busy the machine was before."""
    found: dict[str, float] = {}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"DAPO_LIT_CACHE": f"{folder}/cache"}
    load = round(os.getloadavg()[0], 1)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "dapo_lit.train", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    for line in process.stdout:
        event = "first_point" if re.match(r"step +1/", line) else "first_line"
        if event not in found:
            found[event] = time.perf_counter() - started
            found[f"{event}_processor"] = processor_s(process.pid)
    if process.wait():
        raise SystemExit(f"exit code {process.returncode}")
    found["whole"] = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return {name: round(value, 1) for name, value in (found | {"whole_processor": used, "load_before": load}).items()}


def processor_s(pid: int) -> float:
    """Processor seconds of a running process so far (Linux)."""
    # Behind the name, which is in brackets and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def verdict(folder: Path) -> dict[str, Any]:
    """What the study of a folder found on its registered comparison: points, 95 % t-interval, p, the verdict."""
    (report,) = folder.glob("runs/*/report/report.json")
    (effect,) = (one for one in json.loads(report.read_text(encoding="utf-8"))["effects"] if one["alpha"])
    estimate = {key: round(100 * effect["estimate"][key], 2) for key in ("mean", "low", "high")}
    counts = {"pairs": effect["estimate"]["n"], "same_sign": sum(d * estimate["mean"] > 0 for d in _values(report))}
    return {**estimate, **counts, "p": effect["p"], "decided": effect["decided"]}


def _values(report: Path) -> list[float]:
    """The pairs' own differences on the registered outcome."""
    found = json.loads(report.read_text(encoding="utf-8"))
    (comparison,) = found["comparisons"]
    return list(comparison["differences"])


def machine() -> dict[str, Any]:
    """The processor and its cores."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    of = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = of.get("model name", platform.processor())
    if {"cpu family", "model"} <= of.keys():
        name += f" (family {of['cpu family']}, model {of['model']})"
    return {"processor": name, "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="further settings of the first command, such as budget.steps=2")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="first_run_") as name:
        folder = Path(name)
        found["first"] = measured([*first_command(), *options.more], folder)
        found["second"] = measured(second_command(), folder) | verdict(folder)
    for command, targets in TARGETS.items():
        for event, most in targets.items():
            print(f"{command:7} {event:12} {found[command][event]:6.1f} s   (at most {most:g})")
    print(json.dumps(found["second"]))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
