"""What the page of a run costs the training thread, by the number of rows: `python benchmarks/run_page.py RUN`.

RUN is the folder of a finished run; its rows are repeated, under the steps that follow, to 1,000, 10,000 and 100,000.
Measured in processor time of this thread, which other processes do not change: what a step pays for handing over its
row, what a write takes, and the share of the time that writes take at the spacing that they choose, if a step takes
`--step` seconds. Left out: fsync, which only the disk decides.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablations.files.atomic import write_text
from ablations.files.metrics_file import read_metrics
from ablations.report.run_page import EVERY_S, SHARE, RunPage

SIZES = (1_000, 10_000, 100_000)


def seconds(action: Callable[[], Any]) -> float:
    started = time.thread_time()
    action()
    return time.thread_time() - started


def measured(run: Path, sizes: tuple[int, ...], step_s: float) -> list[dict[str, Any]]:
    """A row for each size, of one page that grows to it."""
    first, *rows = read_metrics(run).rows
    found = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / run.name
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl", "manifest.json"))
        page, step, handed = RunPage(folder), 0, 0.0
        page.due = float("inf")
        page.row(first)
        for size in sizes:
            before = step
            while step < size:
                row = rows[step % len(rows)] | {"step": step + 1}
                handed += seconds(lambda row=row: page.row(row))
                step += 1
            write_s = min(seconds(page.write) for _ in range(3))
            apart_s = max(EVERY_S, write_s / SHARE)
            found.append(
                {
                    "rows": size,
                    "row_us": 1e6 * handed / (size - before),
                    "write_s": write_s,
                    "page_kb": (folder / "run.html").stat().st_size / 1000,
                    "seconds_between_writes": apart_s,
                    "share_of_time": write_s / apart_s + handed / (size - before) / step_s,
                }
            )
            handed = 0.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--step", type=float, default=0.1, help="seconds of a step, for the share (default: 0.1)")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    found = measured(options.run, tuple(options.sizes), options.step)
    for row in found:
        print("  ".join(f"{key} {value:,.4g}" for key, value in row.items()))
    if options.out:
        source = {"step_s": options.step, "metrics": len(read_metrics(options.run).rows[-1])}
        write_text(options.out, json.dumps(source | {"sizes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
