"""Sweeps of kills, signals, full disks and faults over a run of seconds: `make sweeps`.

`--out` takes the outcome of every case (disturbances.py).

    python tests/sweeps.py --out benchmarks/results/sweeps.json
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path

from command_line import SMALL
from disturbances import (
    HANDICAPS,
    RUN,
    Case,
    disk_case,
    folder_case,
    handicap_case,
    signal_sweep,
    starters_case,
    takeover_case,
    uninterrupted,
)

CARRY = "algorithm.dynamic_sampling.carry_over=finished"
SWEPT = (*SMALL, "budget.steps=10", "evaluation.every=5", CARRY, "replay.record=[3]")
GOOD = (
    "resumed, equal",
    "one line names the file; resumed, equal",
    "went on, equal",
    "ended by name; resumed, equal",
    "one left it by name, equal",
)
"""Outcomes in which nothing is lost or changed."""


AT_ONCE = 10
"""Signals between two lines of progress."""


def sweep(
    folder: Path, counted: dict[str, int], workers: int, record: Callable[[list[Case], float], None]
) -> list[Case]:
    """All sweeps; each of the workers starts runs of its own. `record` gets the cases so far, and processor seconds.

    counted: how many kills, signals and sizes of the disk, and whether there are faults.
    """
    whole = folder / "whole"
    _, run_s = uninterrupted(whole, SWEPT)
    works: list[Callable[[], list[Case]]] = []
    kills, signals = counted["kills"], counted["signals"]
    stops = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    kinds = {"kill": [int(signal.SIGKILL)] * kills, "signal": sorted(int(stops[i % 3]) for i in range(signals))}
    for kind, numbers in kinds.items():
        for first in range(0, len(numbers), AT_ONCE):
            place = folder / f"{kind}_{first}"
            place.mkdir()
            works.append(partial(signal_sweep, place, whole, SWEPT, numbers[first : first + AT_ONCE], first, run_s))
    total = sum(file.stat().st_size for file in (whole / RUN).rglob("*") if file.is_file())
    for number in range(counted["disks"]):
        size = int(total * (number + 1) / (counted["disks"] + 1)) // 4096 * 4096
        works.append(partial(disk_case, folder / f"disk_{number}", whole, SWEPT, size))
    if counted["faults"]:
        works += faults(folder, whole)
    cases: list[Case] = []
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(work) for work in works]):
            cases += done.result()
            print(f"{len(cases)} cases; {done.result()[-1]}", flush=True)
            record(cases, run_s)
    return cases


def faults(folder: Path, whole: Path) -> Iterator[Callable[[], list[Case]]]:
    """Everything but signals and full disks, once each."""
    kinds: list[tuple[Callable[..., list[Case]], Iterable[str]]] = [
        (handicap_case, HANDICAPS),
        (folder_case, ("moved", "removed")),
        (starters_case, (f"{when}, {how}" for when in ("at once", "one later") for how in ("one host", "two hosts"))),
        (takeover_case, ("goes on at once", "goes on after its end")),
    ]
    for case, values in kinds:
        for what in values:
            yield partial(case, folder / f"{case.__name__}_{what}".replace(" ", "_"), whole, SWEPT, what)


def counts(cases: list[Case]) -> dict[str, int]:
    """Number of cases of every sweep and outcome."""
    found = Counter(f"{case.sweep}: {case.outcome}" for case in cases)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument(
        "--disks", type=int, default=8, help="sizes of the full disk; 0 where file systems cannot be mounted"
    )
    parser.add_argument(
        "--faults", type=int, default=1, help="0: no second starters, moved folders, lost outputs, limits"
    )
    parser.add_argument("--workers", type=int, default=2, help="runs at once")
    parser.add_argument("--out", type=Path, help="write the outcome of every case as JSON")
    options = parser.parse_args()
    started = time.monotonic()

    def record(cases: list[Case], run_s: float) -> None:
        if options.out is None:
            return
        content = {
            "date": time.strftime("%Y-%m-%d"),
            "run": list(SWEPT),
            "processor_s_of_the_run": round(run_s, 2),
            "wall_s": round(time.monotonic() - started),
            "counts": counts(cases),
            "cases": [asdict(case) for case in cases],
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n")

    with tempfile.TemporaryDirectory(prefix="sweeps_") as place:
        os.environ["DAPO_LIT_CACHE"] = str(Path(place) / "cache")
        cases = sweep(Path(place), vars(options), options.workers, record)
    for outcome, count in counts(cases).items():
        print(f"{count:4d}  {outcome}")
    bad = [case for case in cases if case.outcome not in GOOD]
    sys.exit(f"{len(bad)} cases went wrong: {bad}" if bad else 0)


if __name__ == "__main__":
    main()
