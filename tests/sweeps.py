"""Sweeps of kills, signals, full disks and damaged files over a run of seconds: `make sweeps`.

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path

from command_line import SMALL
from disturbances import (
    DAMAGES,
    RUN,
    Case,
    damage_case,
    damaged_files,
    disk_case,
    killed_run,
    signal_sweep,
    uninterrupted,
)

SWEPT = (*SMALL, "budget.steps=10", "evaluation.every=5", "algorithm.dynamic_sampling.carry_over=finished")
GOOD = (
    "resumed, equal",
    "resumed, all else equal",
    "named in a warning, all else equal",
    "refused, the file is named",
    "one line names the file; resumed, equal",
)
"""Outcomes in which nothing that was not damaged is lost or changed."""


def sweep(
    folder: Path, kills: int, signals: int, disks: int, workers: int, record: Callable[[list[Case], float], None]
) -> list[Case]:
    """All sweeps; each of the workers starts runs of its own. `record` gets the cases so far, and processor seconds."""
    whole = folder / "whole"
    _, run_s = uninterrupted(whole, SWEPT)
    killed = killed_run(folder / "killed", SWEPT)
    total = sum(file.stat().st_size for file in (whole / RUN).rglob("*") if file.is_file())
    works: list[Callable[[], list[Case]]] = []
    kinds = {
        "kill": [int(signal.SIGKILL)] * kills,
        "signal": [int(signal.SIGTERM)] * (signals // 2) + [int(signal.SIGINT)] * (signals - signals // 2),
    }
    for worker in range(workers):
        for kind, numbers in kinds.items():
            if own := numbers[worker::workers]:
                place = folder / f"{kind}_{worker}"
                place.mkdir()
                works.append(partial(signal_sweep, place, whole, SWEPT, own, worker, run_s))
    for number in range(disks):
        size = int(total * (number + 1) / (disks + 1)) // 4096 * 4096
        works.append(partial(disk_case, folder / f"disk_{number}", whole, SWEPT, size))
    for number, (file, damage) in enumerate(product(damaged_files(killed), DAMAGES)):
        works.append(partial(damage_case, folder / f"damage_{number}", killed, whole, SWEPT, file, damage))
    cases: list[Case] = []
    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(work) for work in works]):
            cases += done.result()
            print(f"{len(cases)} cases; {done.result()[-1]}", flush=True)
            record(cases, run_s)
    return cases


def counts(cases: list[Case]) -> dict[str, int]:
    """Number of cases of every sweep and outcome."""
    found = Counter(f"{case.sweep}: {case.outcome}" for case in cases)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument(
        "--disks", type=int, default=8, help="sizes of the full disk; 0 where file systems cannot be mounted"
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
        cases = sweep(Path(place), options.kills, options.signals, options.disks, options.workers, record)
    for outcome, count in counts(cases).items():
        print(f"{count:4d}  {outcome}")
    bad = [case for case in cases if case.outcome not in GOOD]
    sys.exit(f"{len(bad)} cases went wrong: {bad}" if bad else 0)


if __name__ == "__main__":
    main()
