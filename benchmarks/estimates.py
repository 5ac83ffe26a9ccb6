"""How true `ablate`'s estimates are: tokens and seconds that it promises of ten small studies, and what they use.

    python benchmarks/estimates.py [STUDY ...] [--out benchmarks/results/estimates.json]

Runs each in an empty folder, from committed base policies, and reads the study's estimate.json. Some forty minutes of
processor time. Seconds are of the clock: on a machine that does something else they say little, so its load is in the
result.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASES = ROOT / "experiments/bases"
FEW = "study.until=null study.seeds=[{0},{1}] study.pilot=true study.underpowered=true"


def as_given(technique: str, regime: str, folder: str, steps: int, *more: str) -> list[str]:
    """A technique on a task of the package, two pairs of runs from base policies of a committed study."""
    first = {"factorial_joint": 40, "whose_penalty_joint": 216}.get(folder, 52)
    run = f"+experiment=dapo +regime={regime} policy.base_from={BASES / folder} budget.steps={steps}"
    return [technique, "--as-given", *run.split(), *FEW.format(first, first + 1).split(), *more]


def on_data(technique: str, *more: str) -> list[str]:
    """Problems and a model of one's own: sums in a CSV, a committed base policy as a folder."""
    keys = "task.max_response_tokens=64 task.max_prompt_tokens=16 algorithm.optimizer.lr=2e-4 algorithm.num_prompts=32"
    keys += " algorithm.minibatch_prompts=8 algorithm.samples_per_prompt=8 algorithm.overlong.cache_tokens=24"
    model = next((BASES / "factorial_joint").glob("base-*"))
    return [technique, "--model", str(model), "--data", "sums.csv", *keys.split(), *more]


STUDIES = {
    "dynamic sampling on sums": as_given("dynamic_sampling", "joint", "factorial_joint", 4),
    "dynamic sampling on programs": as_given("dynamic_sampling", "programs", "factorial_half_programs", 4),
    "clip-higher on parity, two epochs": as_given(
        "clip_higher", "parity", "factorial_half_parity", 4, "algorithm.epochs=2"
    ),
    "dynamic sampling with a calculator": as_given("dynamic_sampling", "calculator", "factorial_half_calculator", 4),
    "soft punishment on sums": as_given("soft_overlong_punishment", "joint", "whose_penalty_joint", 6),
    "token-level loss on sums": as_given("token_level_loss", "joint", "factorial_joint", 4),
    "clip-higher on sums, two epochs": as_given("clip_higher", "joint", "factorial_joint", 4, "algorithm.epochs=2"),
    "a loss of one's own": [
        "my_losses.soft_clip", "--option", "width=0.2", f"policy.base_from={BASES / 'factorial_joint'}",
        "budget.steps=4", *FEW.format(40, 41).split(),
    ],
    "dynamic sampling, own model and data": on_data(
        "dynamic_sampling", "budget.steps=6", *FEW.format(0, 1).split()
    ),
}  # fmt: skip


def measured(name: str, folder: Path) -> dict[str, Any]:
    """What was promised of the study's runs and what they used, how many there were, and the machine's load before."""
    sums = [(a, b, c) for a in range(2, 10) for b in range(2, 10) for c in range(2, 10)]
    rows = "".join(f"{a}+{b}+{c}=,{a + b + c}\n" for a, b, c in sums)
    (folder / "sums.csv").write_text("problem,answer\n" + rows, encoding="utf-8")
    shutil.copy(ROOT / "docs/examples/soft_clip/my_losses.py", folder)
    load = round(os.getloadavg()[0], 1)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dapo_lit.ablate", *STUDIES[name], "--yes"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    found = [*folder.glob("runs/*/estimate.json")]
    if done.returncode or not found:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    kept = json.loads(found[0].read_text(encoding="utf-8"))
    return {"study": name, "promised": kept["promised_of_these"], "used": kept["used"], "load_before": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="default: all; results of others stay in the file")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/estimates.json")
    options = parser.parse_args()
    if unknown := {*options.studies} - {*STUDIES}:
        parser.error(f"{', '.join(sorted(unknown))}: no such study; {', '.join(STUDIES)}")
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    rows = {}
    if options.out.exists():
        rows = {row["study"]: row for row in json.loads(options.out.read_text(encoding="utf-8"))["studies"]}
    for name in options.studies or STUDIES:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = measured(name, Path(folder))
        ratios = {key: rows[name]["promised"][key] / rows[name]["used"][key] for key in ("tokens", "seconds")}
        print(name, {key: round(ratio, 2) for key, ratio in ratios.items()}, flush=True)
        ordered = [rows[study] for study in STUDIES if study in rows]
        options.out.write_text(json.dumps({"machine": machine, "studies": ordered}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
