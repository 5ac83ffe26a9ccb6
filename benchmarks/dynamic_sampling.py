"""Tokens and time that a full batch of mixed groups costs, for several ways of submitting groups.

A simulated engine decodes one token of every running response in each tick; responses wait in order for a free slot.
Lengths are log-normal with a cap; each group has its own median, because all responses to a hard problem are long.
Whether a group is mixed does not depend on its length, so any difference in length comes from the method.

- `ours`: dapo_lit's Admission as used in training, carry_over=none.
- `fixed_3x`: verl's recipe: complete batches of 3 x the wanted groups until there are enough; the surplus is dropped.
- `rounds`: submits as many groups as the keep rate predicts, waits for them, and repeats for the missing ones.
- `completion_order`: submits like `ours`, but accepts groups in the order in which they finish.
- `foresight`: lower bound of every rule that accepts in submission order: knows in advance which group will fill the
  batch, submits all groups up to it at once and none after it.

    python benchmarks/dynamic_sampling.py               # the table, and benchmarks/dynamic_sampling.json

Left out: verification time, prefill, the slow-down of a tick as more sequences run.
"""

import argparse
import heapq
import json
import math
import sys
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules, KeepRate, groups_in_flight

CAP = 20_480
MEDIAN = 3_000.0
SIGMA_GROUP, SIGMA_SAMPLE = 0.5, 0.6
METHODS = ("ours", "fixed_3x", "rounds", "completion_order", "foresight")


@dataclass
class Workload:
    """Groups in the order of submission, more than a step needs."""

    lengths: np.ndarray
    """[groups, G] tokens, 1 to CAP."""
    mixed: np.ndarray
    """[groups] bool."""


def workload(seed: int, keep_rate: float, num_groups: int, samples: int) -> Workload:
    generator = np.random.default_rng([seed, round(1000 * keep_rate)])
    medians = MEDIAN * np.exp(SIGMA_GROUP * generator.standard_normal((num_groups, 1)))
    lengths = medians * np.exp(SIGMA_SAMPLE * generator.standard_normal((num_groups, samples)))
    return Workload(np.clip(np.rint(lengths), 1, CAP).astype(np.int64), generator.random(num_groups) < keep_rate)


class Engine:
    """Slots, a queue, and a clock that jumps from the end of one response to the next."""

    def __init__(self, work: Workload, slots: int) -> None:
        self.work = work
        self.slots = slots
        self.clock = 0
        self.spent: Counter[int] = Counter()
        """Tokens by group."""
        self.ended: set[int] = set()
        """Groups whose responses have all ended."""
        self._lengths = work.lengths.tolist()
        self._queue: deque[tuple[int, int]] = deque()
        self._running: list[tuple[int, int, int]] = []  # heap of (ends at, group, tokens)
        self._left: dict[int, int] = {}  # responses not ended, by open group

    @property
    def pending(self) -> int:
        return len(self._running) + len(self._queue)

    def submit(self, group: int) -> None:
        lengths = self._lengths[group]
        self._left[group] = len(lengths)
        self._queue.extend((group, length) for length in lengths)
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.slots:
            group, length = self._queue.popleft()
            heapq.heappush(self._running, (self.clock + length, group, length))

    def _end_response(self) -> int | None:
        """Runs until a response has ended; returns its group if it was the last one of it."""
        self.clock, group, length = heapq.heappop(self._running)
        self.spent[group] += length
        self._left[group] -= 1
        self._fill()
        if self._left[group]:
            return None
        del self._left[group]
        self.ended.add(group)
        return group

    def next_group(self, freed: bool = False) -> int | None:
        """Runs until a group has ended and returns it. With `freed`, returns None as soon as a slot is free."""
        while self._running:
            group = self._end_response()
            if group is not None or (freed and self.pending < self.slots):
                return group
        return None

    def until(self, clock: int) -> list[int]:
        """Runs to a time; returns the groups that have ended."""
        ended = []
        while self._running and self._running[0][0] <= clock:
            group = self._end_response()
            if group is not None:
                ended.append(group)
        self.clock = clock
        return ended

    def withdraw(self, beyond: int) -> None:
        """Stops the groups with a higher number; their tokens so far count."""
        keep = [entry for entry in self._running if entry[1] <= beyond]
        if len(keep) < len(self._running):
            for end, group, length in self._running:
                self.spent[group] += length - (end - self.clock) if group > beyond else 0
            self._running = keep
            heapq.heapify(self._running)
        self._queue = deque(entry for entry in self._queue if entry[0] <= beyond)
        self._left = {group: n for group, n in self._left.items() if group <= beyond}
        self._fill()


@dataclass
class Outcome:
    """The outcome of one step."""

    accepted: list[int]
    engine: Engine
    submitted: int

    @property
    def surplus(self) -> int:
        """Tokens of mixed or unfinished groups that are not used in training."""
        chosen, engine = set(self.accepted), self.engine
        return sum(
            tokens
            for group, tokens in engine.spent.items()
            if group not in chosen and (group not in engine.ended or engine.work.mixed[group])
        )


def stream(work: Workload, wanted: int, slots: int, rate: KeepRate, margin: float, by_completion: bool) -> Outcome:
    """`ours`, or the same submissions accepted in the order of completion."""
    rules = CollectionRules(wanted, max_rounds=len(work.mixed), max_groups=len(work.mixed), margin=margin)
    admission, engine = Admission(rules, rate), Engine(work, slots)
    ended: list[int] = []
    cut = None
    while not (admission.full or (by_completion and admission.kept >= wanted)):
        while engine.pending < slots and admission.wanted:
            engine.submit(admission.submit())
        group = engine.next_group(freed=admission.wanted > 0)
        if group is None:
            continue
        admission.resolve(group, bool(work.mixed[group]))
        if work.mixed[group]:
            ended.append(group)
        if not by_completion and admission.cut != cut:
            cut = admission.cut
            engine.withdraw(beyond=cut)
    accepted = ended[:wanted] if by_completion else admission.accepted
    submitted = len(admission._outcomes)
    engine.withdraw(beyond=-1)
    examined = submitted if by_completion else admission.num_examined
    rate.update(int(work.mixed[:examined].sum()), examined)
    rate.end_step()
    return Outcome(accepted, engine, submitted)


def in_batches(work: Workload, wanted: int, slots: int, rate: KeepRate, fixed: bool) -> Outcome:
    """`fixed_3x` or `rounds`: submits batches of groups and waits for each until enough groups are mixed."""
    engine, done, kept = Engine(work, slots), 0, 0
    while kept < wanted:
        size = 3 * wanted if fixed else groups_in_flight(wanted - kept, rate.value, margin=0.0)
        for group in range(done, done + size):
            engine.submit(group)
        while engine.next_group() is not None:
            pass
        fresh = int(work.mixed[done : done + size].sum())
        rate.update(fresh, size)
        done, kept = done + size, kept + fresh
    rate.end_step()
    return Outcome(np.flatnonzero(work.mixed[:done])[:wanted].tolist(), engine, done)


def with_foresight(work: Workload, wanted: int, slots: int) -> Outcome:
    """Exactly the groups up to the last accepted one, all submitted at once."""
    accepted = np.flatnonzero(work.mixed)[:wanted].tolist()
    engine, submitted = Engine(work, slots), accepted[-1] + 1
    for group in range(submitted):
        engine.submit(group)
    while engine.next_group() is not None:
        pass
    return Outcome(accepted, engine, submitted)


def one_step(method: str, work: Workload, wanted: int, slots: int, rate: KeepRate, margin: float) -> Outcome:
    match method:
        case "ours" | "completion_order":
            return stream(work, wanted, slots, rate, margin, by_completion=method == "completion_order")
        case "fixed_3x" | "rounds":
            return in_batches(work, wanted, slots, rate, fixed=method == "fixed_3x")
        case "foresight":
            return with_foresight(work, wanted, slots)
        case _:
            raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")


def measure(method: str, keep_rate: float, slots: int | None, settings: argparse.Namespace) -> dict[str, Any]:
    """Means over steps; the keep rate is already known, as in training after the first step."""
    wanted, samples = settings.prompts, settings.samples
    num_groups = max(9 * wanted, math.ceil(2 * wanted / keep_rate))
    rate = KeepRate(kept=wanted * 1.0, generated=wanted / keep_rate)
    rows, lengths, reference = [], [], []
    for seed in range(settings.steps):
        work = workload(seed, keep_rate, num_groups, samples)
        outcome = one_step(method, work, wanted, slots or 10**9, rate, settings.margin)
        useful = int(work.lengths[outcome.accepted].sum())
        tokens = sum(outcome.engine.spent.values())
        rows.append((tokens, useful, outcome.surplus, outcome.engine.clock, outcome.submitted))
        lengths.append(work.lengths[outcome.accepted].ravel())
        reference.append(work.lengths[np.flatnonzero(work.mixed)[-wanted:]].ravel())  # same distribution, unselected
    tokens, useful, surplus, ticks, submitted = (fmean(column) for column in zip(*rows, strict=True))
    ours, others = np.concatenate(lengths), np.concatenate(reference)
    statistic, p_value = group_level_ks(lengths, reference, samples)
    return {
        "method": method,
        "keep_rate": keep_rate,
        "slots": slots,
        "tokens": tokens,
        "useful_frac": useful / tokens,
        "surplus_frac": surplus / tokens,
        "ticks": ticks,
        "groups": submitted,
        "length_mean": float(ours.mean()),
        "length_mean_unbiased": float(others.mean()),
        "ks": statistic,
        "ks_p": p_value,
    }


def group_level_ks(first: list[np.ndarray], second: list[np.ndarray], samples: int) -> tuple[float, float]:
    """Two-sample test on the mean length of a group: responses of one group are not independent."""
    means = [np.concatenate(x).reshape(-1, samples).mean(axis=1) for x in (first, second)]
    result = ks_2samp(*means)
    return float(result.statistic), float(result.pvalue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="steps a cell is averaged over")
    parser.add_argument("--margin", type=float, default=1.0)
    parser.add_argument("--keep-rates", type=float, nargs="+", default=[0.2, 0.4, 0.6, 0.8, 0.9])
    parser.add_argument("--slots", type=int, nargs="+", default=[2048, 8192, 0], help="0: unlimited")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    settings = parser.parse_args()
    rows = []
    print("keep  slots method            Mtokens  surplus   ticks  groups  length    KS p")
    for keep_rate in settings.keep_rates:
        for slots in settings.slots:
            for method in METHODS:
                row = measure(method, keep_rate, slots or None, settings)
                rows.append(row)
                spent = f"{row['tokens'] / 1e6:>8.1f}{row['surplus_frac']:>9.3f}{row['ticks']:>8.0f}"
                fair = f"{row['groups']:>8.0f}{row['length_mean']:>8.0f}{row['ks_p']:>8.3f}"
                print(f"{keep_rate:>4} {slots or 'all':>6} {method:<17}{spent}{fair}", flush=True)
    shown = {k: v for k, v in vars(settings).items() if k != "out"}
    shown |= {"cap": CAP, "median": MEDIAN, "sigma_group": SIGMA_GROUP, "sigma_sample": SIGMA_SAMPLE}
    command = " ".join(["python", "benchmarks/dynamic_sampling.py", *sys.argv[1:]])
    settings.out.write_text(
        json.dumps({"command": command, "settings": shown, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
