"""Every algorithm on one task for the same number of steps: accuracy before and after, length, entropy, tokens, time.

Runs are sequential, one for each algorithm and seed; finished runs are skipped, so an interrupted benchmark continues.
One seed gives no ranking, it only shows that each algorithm learns. The settings of conf/algorithm/ are not tuned.

    OMP_NUM_THREADS=1 python benchmarks/algorithms.py --steps 60 --seeds 0 --out benchmarks/results/algorithms.json
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ablations.files.metrics_file import read_metrics
from dapo_lit.config import config_folder

ALL = sorted(file.stem for file in (config_folder() / "algorithm").glob("*.yaml"))


def train(algorithms: list[str], seeds: list[int], steps: int, runs: Path, overrides: list[str]) -> None:
    """Starts all runs as one multirun; raises CalledProcessError if one of them fails."""
    command = [sys.executable, "-m", "dapo_lit.train", "-m", *overrides]
    command += [f"algorithm={','.join(algorithms)}", f"seed={','.join(map(str, seeds))}", f"budget.steps={steps}"]
    command += [f"runs_dir={runs}", "study_name=algorithms", "resume=auto", "logger.progress=plain"]
    command += ["logger.rollouts_every=0"]
    subprocess.run(command, check=True, stdout=sys.stderr)


def measured(folder: Path) -> dict[str, float | int | str | None]:
    """The results of one run."""
    rows = read_metrics(folder).table
    before, after = rows.iloc[0], rows.iloc[-1]
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (accuracy,) = (key for key in rows.columns if key.startswith("eval/") and "/avg@" in key)
    label = accuracy.split("/")[1]
    return {
        "algorithm": folder.parent.name,
        "seed": run["seed"],
        "status": run["status"],
        "steps": int(rows.index[-1]),
        "updates": int(after["gradient_step"]),
        "accuracy_before": float(before[accuracy]),
        "accuracy_after": float(after[accuracy]),
        "length_after": float(after[f"eval/{label}/length_mean"]),
        "entropy_after": float(after[f"eval/{label}/entropy"]),
        "tokens_generated": int(after["tokens_generated"]),
        "train_s": float(rows["time/train_s"].sum() + rows["time/score_s"].sum()),
        "wall_s": float(after["wall_s"]),
    }


def table(results: list[dict], steps: int) -> Table:
    """Means over seeds, one row for each algorithm, best first."""
    shown = Table(title=f"{steps} steps, {len({r['seed'] for r in results})} seed(s)", title_justify="left")
    columns = ("accuracy_before", "accuracy_after", "length_after", "entropy_after", "tokens_generated", "train_s")
    for name in ("algorithm", *columns):
        shown.add_column(name.replace("_", " "), justify="left" if name == "algorithm" else "right")
    by_name: dict[str, list[dict]] = {}
    for result in results:
        by_name.setdefault(result["algorithm"], []).append(result)
    means = {n: [statistics.fmean(r[column] for r in runs) for column in columns] for n, runs in by_name.items()}
    for name in sorted(means, key=lambda n: -means[n][1]):
        before, after, length, entropy, tokens, seconds = means[name]
        shown.add_row(
            name, f"{before:.3f}", f"{after:.3f}", f"{length:.1f}", f"{entropy:.3f}", f"{tokens:,.0f}", f"{seconds:.0f}"
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=Path("algorithms.json"))
    arguments, overrides = parser.parse_known_args()
    train(arguments.algorithms, arguments.seeds, arguments.steps, arguments.runs, overrides)
    folders = sorted((arguments.runs / "algorithms").glob("*/seed_[0-9]*"))
    results = [measured(folder) for folder in folders if (folder / "DONE.json").is_file()]
    wanted = [r for r in results if r["algorithm"] in arguments.algorithms and r["seed"] in arguments.seeds]
    content = {
        "command": ["benchmarks/algorithms.py", *sys.argv[1:]],
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "results": wanted,
    }
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    Console().print(table(wanted, arguments.steps))
    print(f"results {arguments.out}")


if __name__ == "__main__":
    main()
