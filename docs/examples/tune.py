"""Tunes a run change by change: pairs of runs until `decide` keeps or drops the change, then the next one.

    python docs/examples/tune.py tuned --hours 1 --check 6 +regime=joint

Starts from naive GRPO. A pair is two runs that share a seed and, in the toy tasks, its base policy; the incumbent's run
is there already after the first change. Each cell is a process of its own, `--workers` at a time. What is not tried:
interactions, except that a change that was dropped is offered again after another one was kept.

OUT holds ledger.jsonl (a row a pair, as `python -m dapo_lit.decide` reads it), cells.jsonl (a row a run: its value and
processor time) and decisions.jsonl, which are only ever appended to, the runs, and at the end page.md and result.json.
After a kill the same command goes on where it was, and a run that was cut off continues from its last checkpoint; what
it had taken before is not counted.

--rule one-run keeps a change if a single run with it, on a seed of its own, is higher than the incumbent's single run:
what `decide` is compared with. --check N runs the start and the end on N further seeds, which no decision saw; that is
the only result that may be claimed.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.command_text import command, setting
from ablations.compare.referee import referee
from ablations.designs import Arm
from ablations.read.ledger import Change, Ledger, Pair, read_ledger
from ablations.read.outcomes import outcome, primary_metric
from ablations.read.runs import Runs, read_run
from ablations.techniques import REGISTER
from dapo_lit.build.base_policy import find_base
from dapo_lit.cli.command import compose

SWITCH = "algorithm.techniques."
CHANGES: dict[str, dict[str, Any]] = {
    **{record.label: {SWITCH + name: True} for name, record in REGISTER.items()},
    "wide clip": {SWITCH + "clip_higher": True, "algorithm.clip.high": 0.5},
    "mean over groups": {SWITCH + "token_level_loss": True, "algorithm.token_level_denominator": "group"},
    "half the rate": {"algorithm.optimizer.lr": 1e-4},
    "twice the rate": {"algorithm.optimizer.lr": 4e-4},
}
"""Name of a change -> the keys that it sets on top of the incumbent."""
FIRST_PAIRS = 2
"""Before `decide` is asked: one pair shows no noise."""
CHECK_SEEDS = 100_000
"""The first seed of the check."""


@dataclass
class Tuning:
    """The state of a loop, all of which is in the files of `out`."""

    out: Path
    keys: Sequence[str]
    workers: int
    seconds: float
    """Of processor time, of all cells."""
    seeds: Sequence[int]
    price: float | None = None
    runs: float = math.inf
    """The most cells, but for those of pairs that are under way."""
    bases: int | None = None
    """Base policies that the seeds of tuning share by turns; None: each seed has its own."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    making: threading.Lock = field(default_factory=threading.Lock)
    """Held while a base policy is made, so that two cells do not make the same."""

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.cells = {(row["arm"], row["seed"]): row for row in rows(self.out / "cells.jsonl")}

    @property
    def spent(self) -> float:
        return sum(row["seconds"] for row in self.cells.values())

    @property
    def is_over(self) -> bool:
        return self.spent >= self.seconds or len(self.cells) >= self.runs

    def run_all(self, wanted: Sequence[tuple[Arm, int]]) -> None:
        """Runs the cells that are not there yet, some at a time."""
        missing = {(arm.name, seed): (arm, seed) for arm, seed in wanted if (arm.name, seed) not in self.cells}
        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(lambda cell: self.run(*cell), missing.values()))

    def base_of(self, seed: int) -> int:
        """The number of the base policy that a run with this seed starts from."""
        first = self.seeds[0]
        return seed if self.bases is None or seed >= CHECK_SEEDS else first + (seed - first) % self.bases

    def run(self, arm: Arm, seed: int) -> None:
        """One cell, in a process of its own. A run that was cut off continues, one that has ended is read.

        Its base policy is made before and not counted, as a model that one tunes is there already.
        """
        given = [setting(key, value) for key, value in arm.values.items()]
        overrides = [
            f"task.base_seed={self.base_of(seed)}", *self.keys, *given, f"seed={seed}", setting("study_name", arm.name),
            setting("runs_dir", str(self.out / "runs")), "resume=auto", "logger.progress=none",
        ]  # fmt: skip
        with self.making:
            config = compose(*overrides)
            if config.policy.path is None:
                find_base(config.policy, config.task)
        log = self.out / "logs" / f"{arm.name}_seed_{seed}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("a", encoding="utf-8") as written:
            process = subprocess.Popen(
                [sys.executable, "-m", "dapo_lit.train", *overrides], stdout=written, stderr=written,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )  # fmt: skip
            usage = os.wait4(process.pid, 0)[2]
        found = [*(self.out / "runs" / arm.name).glob(f"*/seed_{seed}/run.json")]
        run = read_run(found[0].parent) if found else None
        # A run in which nothing was learned ends with an error, and its value is as good as any.
        if run is None or not run.usable:
            raise SystemExit(f"error: {arm.name}, seed {seed} has failed; {log} says why")
        metric = primary_metric(Runs((run,)))
        row = {"arm": arm.name, "seed": seed, "metric": metric, "value": outcome(run, metric),
               "seconds": usage.ru_utime + usage.ru_stime}  # fmt: skip
        with self.lock:
            append(self.out / "cells.jsonl", row)
            self.cells[arm.name, seed] = row

    def value(self, arm: Arm, seed: int) -> float:
        return float(self.cells[arm.name, seed]["value"])

    def pair(self, name: str, new: Arm, old: Arm, seed: int, file: str = "ledger.jsonl") -> dict[str, Any]:
        """A row of the ledger; what a run cost is counted with the first pair that needed it."""
        cost = sum(self.cells[arm.name, seed]["seconds"] for arm in (new, old)) / 60
        row = {"change": name, "pair": seed, "with": self.value(new, seed), "without": self.value(old, seed)}
        row |= {"cost": cost, "incumbent": old.name}
        append(self.out / file, row)
        return row


def rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, without one that a kill has torn, which is removed."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def append(file: Path, row: Mapping[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def arm_of(settings: Mapping[str, Any]) -> Arm:
    """Naive GRPO with these keys set."""
    on = frozenset(key.removeprefix(SWITCH) for key, value in settings.items() if key.startswith(SWITCH) and value)
    return Arm(on, {key: value for key, value in settings.items() if not key.startswith(SWITCH)})


def by_decide(loop: Tuning, name: str, new: Arm, old: Arm) -> dict[str, Any] | None:
    """Pairs until `decide` keeps or discards the change; None: the budget ended first."""
    file, wanted = loop.out / "ledger.jsonl", FIRST_PAIRS
    known = {row["pair"] for row in rows(file) if row["change"] == name}
    while True:
        if loop.is_over:
            return None
        seeds = loop.seeds[:wanted]
        loop.run_all([(arm, seed) for seed in seeds for arm in (new, old)])
        for seed in seeds:
            if seed not in known:
                loop.pair(name, new, old, seed)
                known.add(seed)
        answer = referee(read_ledger(file), price=loop.price, most=len(loop.seeds))
        (found,) = (row for row in answer["changes"] if row["change"] == name)
        points = 100 * found["difference"]
        print(f"{name}: {found['action']} after {len(known)} pairs, {points:+.1f} points", flush=True)
        if found["action"] != "more":
            return found
        wanted = len(known) + found["more_pairs"]


def by_one_run(loop: Tuning, name: str, new: Arm, old: Arm) -> dict[str, Any] | None:
    """Keeps the change if its one run, on a seed that nothing has used, is higher than the incumbent's."""
    if loop.is_over:
        return None
    incumbent = next((seed for arm, seed in loop.cells if arm == old.name), None)
    if incumbent is None:
        loop.run_all([(old, loop.seeds[0])])
        incumbent = loop.seeds[0]
    used = {seed for _, seed in loop.cells}
    seed = next(s for s in range(loop.seeds[0], CHECK_SEEDS) if s not in used)
    loop.run_all([(new, seed)])
    gain = loop.value(new, seed) - loop.value(old, incumbent)
    print(f"{name}: {gain:+.3f} in one run", flush=True)
    return {"action": "keep" if gain > 0 else "discard", "difference": gain, "pairs": 1, "wrong_sign": None,
            "regret_now": None}  # fmt: skip


def tune(loop: Tuning, changes: Mapping[str, Mapping[str, Any]], rule: str, order: int) -> dict[str, Any]:
    """Offers changes in rounds until a round keeps none, or until the budget ends; returns the settings it ends
    with."""
    file, settings, shuffled = loop.out / "decisions.jsonl", dict[str, Any](), random.Random(order)
    decided = {row["change"]: row for row in rows(file)}
    for turn in range(1, 1000):
        kept, offers = False, sorted(changes)
        shuffled.shuffle(offers)
        for offer in offers:
            new = {**settings, **changes[offer]}
            if new == settings:
                continue
            name = offer if turn == 1 else f"{offer} (round {turn})"
            row = decided.get(name)
            if row is None:
                decide = by_decide if rule == "decide" else by_one_run
                found = decide(loop, name, arm_of(new), arm_of(settings))
                if found is None:
                    return settings
                row = {"change": name, "incumbent": arm_of(settings).name, "spent": loop.spent, **found}
                append(file, row)
            if row["action"] == "keep":
                settings, kept = new, True
        if not kept and rule == "decide":
            return settings
    return settings


def check(loop: Tuning, start: Arm, end: Arm, pairs: int) -> dict[str, Any] | None:
    """The end against the start on fresh seeds, by the test that keeps its error; None where nothing was kept."""
    if start.name == end.name:
        return None
    seeds = range(CHECK_SEEDS, CHECK_SEEDS + pairs)
    loop.run_all([(arm, seed) for seed in seeds for arm in (start, end)])
    change = Change(f"{end.name} against {start.name}")
    change.pairs = [Pair(str(seed), loop.value(end, seed), loop.value(start, seed)) for seed in seeds]
    change.costs = [2.0] * pairs
    answer = referee(Ledger("the check", "study", (change,), looks=(pairs,)), "claims", most=pairs)
    return dict(answer["changes"][0])


def page(loop: Tuning, start: Arm, end: Arm, checked: Mapping[str, Any] | None, tuned_s: float, typed: str) -> str:
    """What was tried, kept and dropped, what it cost, and what may be claimed, as Markdown."""

    def points(value: float) -> str:
        return f"{round(value, 1) + 0.0:+.1f}"  # no minus before a zero

    lines = [
        f"# Tuned from {start.name} to {end.name}", "", f"`{typed}`", "",
        f"{len(loop.cells)} runs; {tuned_s / 3600:.2f} hours of processor time for tuning, "
        f"{(loop.spent - tuned_s) / 3600:.2f} for the check.", "",
        "| change | offered to | pairs | points | wrong sign | regret | |", "|---|---|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for row in rows(loop.out / "decisions.jsonl"):
        wrong = "" if row["wrong_sign"] is None else f"{100 * row['wrong_sign']:.0f} %"
        regret = "" if row["regret_now"] is None else f"{100 * row['regret_now']:.2f}"
        done = "kept" if row["action"] == "keep" else "dropped"
        cells = [row["change"], row["incumbent"], f"{row['pairs']:g}", points(100 * row["difference"])]
        lines.append(f"| {' | '.join([*cells, wrong, regret, done])} |")
    lines += ["", "These decisions are for tuning: the best guess at a price, no claim.", ""]
    lines += ["## What may be claimed", ""]
    if checked is None:
        lines.append("Nothing was checked on fresh seeds, so nothing.")
    else:
        verdict = {"gain": "a gain", "loss": "a loss", "undecided": "not decided"}[checked["claim"]["verdict"]]
        low, high = (100 * checked[end] for end in ("low", "high"))
        lines.append(
            f"On {checked['pairs']:g} seeds that no decision saw: {points(100 * checked['difference'])} points "
            f"[{low:.1f}, {high:.1f}], {verdict} by the exact test at 5 %."
        )
    given = [setting(key, value) for key, value in end.values.items()]
    lines += ["", "## To train it", "", "```", command("train", *loop.keys, *given), "```", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("out", type=Path, help="the folder of runs, ledger and page")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--hours", type=float, default=math.inf, help="of processor time; cells under way end")
    budget.add_argument("--runs", type=float, default=math.inf, help="the same on a slow and a fast machine")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--pairs", type=int, default=12, help="the most pairs of a change")
    parser.add_argument("--price", type=float, help="of a minute of processor time, in accuracy (0.001 is 0.1 points)")
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds that tuning uses")
    parser.add_argument("--bases", type=int, help="base policies that these share by turns (default: one a seed)")
    parser.add_argument("--order", type=int, default=0, help="another number offers the changes in another order")
    parser.add_argument("--rule", choices=("decide", "one-run"), default="decide")
    parser.add_argument("--only", nargs="*", choices=sorted(CHANGES), help="the changes to offer (default: all)")
    parser.add_argument("--check", type=int, default=0, help="pairs on fresh seeds at the end, for a claim")
    options, keys = parser.parse_known_args(arguments)
    if wrong := [key for key in keys if "=" not in key or key.startswith("-")]:
        parser.error(f"{wrong[0]}: not key=value")
    if not (options.hours > 0 and options.runs > 0):
        parser.error("--hours, --runs: a budget above 0, or nothing is tried")
    if options.bases is not None and options.bases < 1:
        parser.error("--bases: at least one")
    # What other keys say comes later on the command line and wins.
    keys = ["policy.dtype=float32", "trainer=cpu", "evaluation.every=0", *keys]
    seeds = range(options.seed, options.seed + options.pairs)
    seconds = 3600 * options.hours
    loop = Tuning(options.out, keys, options.workers, seconds, seeds, options.price, options.runs, options.bases)
    changes = {name: CHANGES[name] for name in options.only or CHANGES}
    start, end = arm_of({}), arm_of(tune(loop, changes, options.rule, options.order))
    tuned_s = sum(row["seconds"] for row in loop.cells.values() if row["seed"] < CHECK_SEEDS)
    checked = check(loop, start, end, options.check) if options.check else None
    typed = " ".join(["python docs/examples/tune.py", *arguments])
    (loop.out / "page.md").write_text(page(loop, start, end, checked, tuned_s, typed), encoding="utf-8")
    result = {"rule": options.rule, "order": options.order, "start": start.name, "end": end.name}
    result |= {"runs": len(loop.cells), "tuning_s": tuned_s, "check_s": loop.spent - tuned_s, "check": checked}
    (loop.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"page: {loop.out / 'page.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
