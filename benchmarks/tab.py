"""Seconds of a step of docs/play/train.html in headless Chromium: `python benchmarks/tab.py`.

The page trains the pair of its start. Each policy has a thread, so on two idle cores a step of both takes the processor
time of the slower thread; the wall time is longer if other programs run, as the load average says. The first step,
which compiles, is given by itself. Also compared: loss and gradient norm of the first steps with the package's
(tests/pages/browser_steps.json).

With --webgpu WebGPU is computed on the processor, by SwiftShader: that gives its numbers, and no speed.
"""

import argparse
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from ablations.files.atomic import write_text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, chromium  # noqa: E402

PAGE = ROOT / "docs/play/train.html"
OUT = ROOT / "benchmarks/results/tab.json"
REFERENCE = ROOT / "tests/pages/browser_steps.json"
SWIFTSHADER = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
COMPARED = {"loss": "loss/policy", "grad_norm": "optim/grad_norm"}


def thread_seconds() -> list[float]:
    """Processor seconds of each worker thread of the browser that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        for thread in process.threads():
            name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text(encoding="utf-8")
            if name.startswith("DedicatedWorker"):
                found.append(thread.user_time + thread.system_time)
    return found


def trained(
    browser: Browser, backend: str, steps: int
) -> tuple[list[list[dict[str, Any]]], list[float], list[list[float]]]:
    """The metrics of both policies; of each step the wall seconds of both and the processor seconds of each thread."""
    browser.call("Page.navigate", url=f"{PAGE.as_uri()}#backend={backend}")
    browser.wait()
    walls: list[float] = []
    threads = [thread_seconds()]
    browser.evaluate("document.getElementById('start').click()")
    started = time.perf_counter()
    while len(walls) < steps:
        time.sleep(0.02)
        if browser.evaluate("Math.min(...runs.map((run) => run.length))") > len(walls):
            walls.append(time.perf_counter() - started)
            threads.append(thread_seconds())
            started = time.perf_counter()
    used = [[b - a for a, b in zip(before, after, strict=True)] for before, after in pairwise(threads)]
    return browser.evaluate("runs.map((run) => run.map(({ metrics }) => metrics))"), walls, used


def compared(runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Step 1 of A and B, in the page and in the package, and the largest relative difference in steps 1 to 3."""
    reference = list(json.loads(REFERENCE.read_text(encoding="utf-8")).values())
    return {
        "page": {name: [run[0][key] for run in runs] for name, key in COMPARED.items()},
        "package": {name: [steps[0][key] for steps in reference] for name, key in COMPARED.items()},
        "apart": max(
            abs(mine[key] / theirs[key] - 1)
            for run, steps in zip(runs, reference, strict=True)
            for mine, theirs in zip(run, steps, strict=False)
            for key in COMPARED.values()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--webgpu", action="store_true", help="WebGPU by SwiftShader instead of WebAssembly")
    options = parser.parse_args()
    backend = "webgpu" if options.webgpu else "wasm"
    load = os.getloadavg()[0]
    with chromium(*SWIFTSHADER if options.webgpu else ()) as browser:
        runs, walls, used = trained(browser, backend, options.steps)
        version = browser.call("Browser.getVersion")["product"]
    found: dict[str, Any] = {"steps": options.steps, "browser": version, "step_1_to_3": compared(runs)}
    if not options.webgpu:
        found |= {
            "first_processor_s": used[0],
            "processor_s": [statistics.mean(thread) for thread in zip(*used[1:], strict=True)],
            "first_wall_s": walls[0],
            "wall_s": statistics.median(walls[1:]),
            "load": load,
            "cores": os.cpu_count(),
        }
    kept = json.loads(OUT.read_text(encoding="utf-8")) if OUT.is_file() else {}
    write_text(OUT, json.dumps(kept | {backend: found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
