"""Part f: the upper clip bound and dynamic sampling, as many seeds as the time gives, several runs at once.

Arms: upper bounds of 0.2, 0.28 and none, and the second without dynamic sampling; SmolLM2-135M on sums where its
weights are, otherwise the tiny policy on chain_sum. Seeds are started in turn over the arms. A run that is under way at
the cap is ended, and its rows count up to the last step that every arm has reached with that seed.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from part import STARTED, Report, options
from runs import begin, rows

ARMS = {
    "0.28": ("algorithm.clip.high=0.28",),
    "0.2": ("algorithm.techniques.clip_higher=false",),
    "none": ("algorithm.clip.high=100",),
    "0.28, no dynamic sampling": ("algorithm.clip.high=0.28", "algorithm.techniques.dynamic_sampling=false"),
}
KEYS = ("rollout/accuracy", "policy/entropy", "rollout/length_mean", "clip/high_frac")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--smollm2", default="models/smollm2_135m")
    parser.add_argument("--at_once", type=int, default=1, help="runs that share the machine")
    args = parser.parse_args()
    model = Path(args.smollm2).absolute()
    if args.tiny:
        base, arms, args.cap_s = ("+experiment=four_sums", "budget.steps=2"), dict(list(ARMS.items())[:2]), 100.0
    elif (model / "config.json").exists():
        base, arms = ("+experiment=smollm2_arithmetic", f"policy.path={model}", "budget.steps=60"), ARMS
    else:
        base, arms = ("+experiment=dapo", "budget.steps=200"), ARMS
    with tempfile.TemporaryDirectory() as folder:
        results = study(Path(folder), base, arms, args.cap_s, args.at_once, seeds=1 if args.tiny else 64)
    report = Report("f_study", args, ["upper bound", "seeds", "steps", *KEYS])
    for arm, seeds in results.items():
        ends = [values for values in seeds.values() if values]
        cells = [f"{sum(v[-1][key] or 0.0 for v in ends) / len(ends):.3f}" if ends else "" for key in KEYS]
        report.add(arm, seeds, str(len(ends)), str(min((len(v) - 1 for v in ends), default=0)), *cells)
    report.close()


def study(
    folder: Path, base: tuple[str, ...], arms: dict[str, tuple[str, ...]], cap_s: float, at_once: int, seeds: int
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Rows of every run, by arm and seed; all arms of a seed are cut to the same step."""
    waiting = [(arm, seed) for seed in range(seeds) for arm in arms]
    running: dict[tuple[str, int], Any] = {}
    started: list[tuple[str, int]] = []
    while waiting or running:
        late = time.monotonic() - STARTED > cap_s
        if late:
            waiting.clear()
            for process in running.values():
                process.terminate()
        running = {cell: process for cell, process in running.items() if process.poll() is None}
        while waiting and len(running) < at_once:
            arm, seed = waiting.pop(0)
            place = folder / f"{list(arms).index(arm)}_{seed}"
            running[arm, seed] = begin(place, *base, *arms[arm], f"seed={seed}", "evaluation.every=0")
            started.append((arm, seed))
        time.sleep(0.2)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {arm: {} for arm in arms}
    for seed in sorted({seed for _, seed in started}):
        of_arms = {arm: read(folder / f"{index}_{seed}") for index, arm in enumerate(arms)}
        common = min(map(len, of_arms.values()))
        for arm, of in of_arms.items():
            found[arm][str(seed)] = [{key: row.get(key) for key in ("step", *KEYS)} for row in of[:common]]
    return found


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run without row 0; none if it did not get that far."""
    return rows(folder)[1:] if list(folder.rglob("metrics.jsonl")) else []


if __name__ == "__main__":
    main()
