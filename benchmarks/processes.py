"""One run in one, two and four processes (FSDP over gloo, on the CPU): is it the same run, and what does sharing cost?

Each run is `python -m dapo_lit.train +experiment=dapo +regime=joint` with float32 shards and one thread a process. It
is made with few and with more steps, so that the processor time of a step is without start-up. Seconds of the phases
are wall time of the first process, without the first step; with more processes than cores they say little.

    python benchmarks/processes.py --out benchmarks/results     # five minutes on two idle cores
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import measure
import pandas as pd

PROCESSES = (1, 2, 4)
SHORT, LONG = 2, 6
"""Rollout steps of the two runs."""
COMMON = (
    "+experiment=dapo", "+regime=joint", "trainer=fsdp", "trainer.accelerator=cpu", "trainer.sharding.dtype=null",
    "trainer.threads=1", "evaluation.every=0", "evaluation.samples=1", "logger.rollouts_every=1",
    "logger.progress=none", "preflight=false",
)  # fmt: skip
SMALL = ("algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "algorithm.epochs=1")
COMPARED = ("policy/entropy", "optim/grad_norm")


def trained(folder: Path, processes: int, steps: int, settings: tuple[str, ...]) -> tuple[float, Path]:
    """Processor seconds of a run with all its processes, and its folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    name = f"of_{processes}_{steps}"
    options = (*COMMON, *settings, f"trainer.devices={processes}", f"budget.steps={steps}", f"study_name={name}")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    command = [sys.executable, "-m", "dapo_lit.train", *options, f"runs_dir={folder}"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (written,) = (folder / name).rglob("metrics.jsonl")
    return spent, written.parent


def rows(run: Path) -> list[dict[str, Any]]:
    """Of the rollout steps."""
    with (run / "metrics.jsonl").open(encoding="utf-8", newline="\n") as lines:
        return [row for row in map(json.loads, lines) if row["step"] > 0]


def answers(run: Path) -> list[pd.Series]:
    """The answers of each step that were trained on, by problem and sample."""
    files = sorted((run / "rollouts").glob("*.parquet"))
    keys = ["problem_id", "attempt", "group_index", "sample_index"]
    return [pd.read_parquet(file).query("kept").set_index(keys)["response"].sort_index() for file in files]


def equal_steps(run: Path, alone: Path) -> int:
    """Steps from the first on whose answers are those of one process."""
    pairs = list(zip(answers(run), answers(alone), strict=True))
    return next((step for step, (ours, theirs) in enumerate(pairs) if not ours.equals(theirs)), len(pairs))


def largest(run: Path, alone: Path, key: str, steps: int) -> float:
    """The largest relative difference of a metric in the first steps."""
    pairs = list(zip(rows(run), rows(alone), strict=True))[:steps]
    return max((abs(ours[key] - theirs[key]) / abs(theirs[key]) for ours, theirs in pairs), default=0.0)


HEADS = ("processes", "sampling, s", "updates, s", "processor s a step", "steps with one process's answers")


def _texts(row: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{row[key]:.2f}" for key in ("generate_s", "train_s", "processor_s"))
    return str(row["processes"]), *times, f"{row['equal_steps']} of {row['steps']}"


def main() -> None:
    args = measure.arguments(__doc__).parse_args()
    began = measure.machine(args.threads)
    settings = SMALL if args.tiny else ()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        alone = Path()
        for processes in PROCESSES:
            short, _ = trained(Path(name), processes, SHORT, settings)
            long, run = trained(Path(name), processes, LONG, settings)
            alone = run if processes == 1 else alone
            later = rows(run)[1:]
            equal = equal_steps(run, alone)
            found.append(
                {
                    "processes": processes,
                    "processor_s": (long - short) / (LONG - SHORT),
                    "generate_s": fmean(row["time/generate_s"] for row in later),
                    "train_s": fmean(row["time/train_s"] for row in later),
                    "steps": LONG,
                    "equal_steps": equal,
                    "differences": {key: largest(run, alone, key, equal) for key in COMPARED if key in rows(run)[0]},
                }
            )
            table = measure.markdown(HEADS, [_texts(row) for row in found])
            measure.record("processes", args, began, ["lightning"], {"rows": found}, table)
    measure.publish("processes", args, began, ["lightning"], {"rows": found}, table)


if __name__ == "__main__":
    main()
