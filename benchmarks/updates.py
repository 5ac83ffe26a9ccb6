"""Scoring and updates of a step by what completions share (trainer.shared_prompt), compiled, and with the sampler's
log-probs, in turns.

Each setting trains in a process of its own, as in vs_trl.py, and makes a few steps a turn; the first step of a process
is not counted, but for the seconds that compiling takes. `tiny` and `smollm2` are the works of vs_trl.py.

    python benchmarks/updates.py --out benchmarks/results
"""

import os
import sys
from typing import Any

import transformers
from measure import arguments, machine, markdown, median, publish
from vs_trl import ROLLOUT, SMOLLM2, STEPS, TINY, Sides, Steps
from vs_trl_sides import Work, ours

SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {"trainer.shared_prompt": "auto"},
    "prefixes": {"trainer.shared_prompt": "prefixes"},
    "branches": {"trainer.shared_prompt": "branches"},
    "branches, old_logprobs=rollout": ROLLOUT,
    "branches, compiled": {"trainer.compile": "true"},
}
NAMES = ("transformers", "lightning")


def took(step: dict[str, Any], part: str) -> float:
    return float(step["times"].get(f"time/{part}_s", 0.0))


def rows(label: str, turns: dict[str, list[Steps]], first: dict[str, float]) -> list[list[str]]:
    """A row a setting: medians over all steps, and the range of both together."""
    both = {name: [took(s, "score") + took(s, "train") for turn in of for s in turn] for name, of in turns.items()}
    made = []
    for name, of in turns.items():
        each = [median([took(step, part) for turn in of for step in turn]) for part in ("score", "train")]
        spread = f"{median(both[name]):.2f} ({min(both[name]):.2f} to {max(both[name]):.2f})"
        less = f"{median(both[name]) / median(both['auto']):.2f}"
        made.append([f"{label}: {name}", f"{first[name]:.1f}", *(f"{x:.2f}" for x in each), spread, less])
    return made


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--work", nargs="+", choices=["tiny", "smollm2"], default=["tiny"])
    parser.add_argument("--model", default="models/smollm2_135m")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    transformers.logging.set_verbosity_error()
    small = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2")
    works = {"tiny": small if args.tiny else TINY, "smollm2": (*SMOLLM2, f"policy.path={args.model}")}
    settings = {name: of for name, of in SETTINGS.items() if not args.tiny or name in ("auto", "branches")}
    began, table, results = machine(args.threads), list[list[str]](), dict[str, Any]()
    for label in args.work:
        turns: dict[str, list[Steps]] = {name: [] for name in settings}
        first: dict[str, float] = {}
        with Sides({name: (ours, Work(works[label], args.threads, of)) for name, of in settings.items()}) as sides:
            for repeat in range(1 if args.tiny else args.repeats):
                for name in [*settings][:: 1 if repeat % 2 else -1]:
                    beginning = sides.turn(name, 1, warmup=0)[0]
                    first.setdefault(name, took(beginning, "score") + took(beginning, "train"))
                    turns[name].append(sides.turn(name, STEPS[label], warmup=0))
                    print(f"{label}: {name}: {turns[name][-1][0]['times']}", file=sys.stderr, flush=True)
        results[label] = {"turns": turns, "first": first}
        table += rows(label, turns, first)
    header = ["", "first step, s", "scoring, s", "updates, s", "both, s", "of auto"]
    publish("updates", args, began, NAMES, results, markdown(header, table))


if __name__ == "__main__":
    main()
