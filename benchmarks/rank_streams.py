"""Decode steps until a batch is full where several ranks sample together: in rounds, or as a stream.

The engines and the workload are those of dynamic_sampling.py, with as many engines as ranks and 512 prompts x 16
responses for all of them.

- `rounds`: every rank samples its part of the groups that the keep rate predicts; all wait for the longest answer of
  the round, exchange what they have, and repeat for the missing groups.
- `stream`: dapo_lit's way. The ranks exchange what has ended every TICK_STEPS decode steps, and the engine with the
  fewest responses to give gets the next group.

    python benchmarks/rank_streams.py --ranks 8

With --uneven: seconds of a step of Qwen2.5-32B on 32 engines of 4 H800 and 256 sequences. A decode step takes the time
that `python -m dapo_lit.plan` models (steps_ahead.py), times a factor of the engine and one of the tick, both
log-normal. Ways to exchange, of which the second and the third are dapo_lit's:

- `every 8 steps`: all engines wait for the slowest one after each tick.
- `a tick later`: what a tick gave is taken in after the next one (reproducible engines).
- `on arrival`: an engine takes an exchange in after the tick in which it is complete (all other engines).
- `no exchange`: all engines know at once what one of them knows.

    python benchmarks/rank_streams.py --uneven      # the table, and benchmarks/results/rank_streams.json

Left out: what an exchange costs, verification and, without --uneven, the slow-down of a decode step as more sequences
run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean

import numpy as np
from dynamic_sampling import Engine, Workload, workload
from steps_ahead import KEEP_RATE, SLOTS, decode_step_s

from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules, KeepRate
from dapo_lit.rollout.rank_sampling import TICK_STEPS

ENGINES = 32
EXCHANGES = ("every 8 steps", "a tick later", "on arrival", "no exchange")


def in_rounds(work: Workload, admission: Admission, engines: list[Engine]) -> None:
    while not admission.full:
        groups = [admission.submit() for _ in range(admission.wanted)]
        for index, group in enumerate(groups):
            engines[index % len(engines)].submit(group)
        for engine in engines:
            while engine.next_group() is not None:
                pass
        for group in groups:
            admission.resolve(group, bool(work.mixed[group]))
        for engine in engines:  # all wait for the last one
            engine.clock = max(engine.clock for engine in engines)


def as_stream(work: Workload, admission: Admission, engines: list[Engine]) -> None:
    cut, clock = None, 0
    while not admission.full:
        while admission.wanted and min(engine.pending for engine in engines) < engines[0].slots:
            min(engines, key=lambda engine: engine.pending).submit(admission.submit())
        clock += TICK_STEPS
        for engine in engines:
            for group in engine.until(clock):
                admission.resolve(group, bool(work.mixed[group]))
        if admission.cut is not None and admission.cut != cut:
            cut = admission.cut
            for engine in engines:
                engine.withdraw(beyond=cut)


WAYS: dict[str, Callable[[Workload, Admission, list[Engine]], None]] = {"rounds": in_rounds, "stream": as_stream}


def measure(way: str, keep_rate: float, margin: float, settings: argparse.Namespace) -> tuple[float, float]:
    """Mean decode steps, and tokens, of a rollout step."""
    steps, tokens = [], []
    for seed in range(settings.steps):
        work = workload(seed, keep_rate, 9 * settings.prompts, settings.samples)
        rate = KeepRate(kept=settings.prompts, generated=settings.prompts / keep_rate)
        rules = CollectionRules(settings.prompts, max_rounds=9, margin=margin)
        engines = [Engine(work, settings.slots or 10**9) for _ in range(settings.ranks)]
        WAYS[way](work, Admission(rules, rate), engines)
        steps.append(max(engine.clock for engine in engines))
        for engine in engines:
            engine.withdraw(beyond=-1)
        tokens.append(sum(sum(engine.spent.values()) for engine in engines))
    return fmean(steps), fmean(tokens)


@dataclass
class Paced:
    """An engine with the seconds that its ticks take."""

    engine: Engine
    seconds: np.ndarray
    """Of a decode step, by running sequences."""
    factors: Iterator[float]
    """Of each tick's seconds."""
    time: float = 0.0
    ended: list[int] = field(default_factory=list)
    """Groups that have ended since the last report."""

    def tick(self) -> None:
        running = min(self.engine.pending, self.engine.slots)
        if running:
            self.time += TICK_STEPS * self.seconds[running] * next(self.factors)
            self.ended += self.engine.until(self.engine.clock + TICK_STEPS)

    def report(self) -> list[int]:
        ended, self.ended = self.ended, []
        return ended


class Batch:
    """What all engines decide alike in a step: which groups to submit, to whom, and which to withdraw."""

    def __init__(self, work: Workload, settings: argparse.Namespace, engines: list[Paced]) -> None:
        rate = KeepRate(kept=settings.prompts, generated=settings.prompts / KEEP_RATE)
        self.admission = Admission(CollectionRules(settings.prompts, max_rounds=9), rate)
        self.work, self.engines, self.cut = work, engines, None

    def take_in(self, ended: Iterable[int], pending: list[int]) -> None:
        """ended: groups; pending: samples that each engine had to give when it said so."""
        admission = self.admission
        for group in ended:
            admission.resolve(group, bool(self.work.mixed[group]))
        while admission.wanted and min(pending) < self.engines[0].engine.slots:
            chosen = min(range(len(pending)), key=pending.__getitem__)
            self.engines[chosen].engine.submit(admission.submit())
            pending[chosen] += self.work.lengths.shape[1]
        if admission.cut is not None and admission.cut != self.cut:
            self.cut = admission.cut
            for paced in self.engines:
                paced.engine.withdraw(beyond=self.cut)


def exchanging(way: str, batch: Batch) -> float:
    """Seconds until all engines know that the batch is full."""
    engines = batch.engines
    while not batch.admission.full:
        if way == "every 8 steps":
            for paced in engines:
                paced.tick()
        reports, pending = [paced.report() for paced in engines], [paced.engine.pending for paced in engines]
        arrival = max(paced.time for paced in engines)
        for paced in engines:
            if way != "every 8 steps":
                paced.tick()
            while way == "on arrival" and paced.time < arrival and paced.engine.pending:
                paced.tick()
            paced.time = max(paced.time, arrival)
        batch.take_in(chain(*reports), pending)
    return max(paced.time for paced in engines)


def knowing_all(batch: Batch) -> float:
    """The same, where nothing has to be exchanged: the engine that is furthest behind has its tick first."""
    engines = batch.engines
    batch.take_in([], [0] * len(engines))
    while not batch.admission.full:
        paced = min((each for each in engines if each.engine.pending), key=lambda each: each.time)
        for idle in engines:  # so that it would start a group now
            idle.time = idle.time if idle.engine.pending else max(idle.time, paced.time)
        paced.tick()
        batch.take_in(paced.report(), [each.engine.pending for each in engines])
    return paced.time


def uneven(settings: argparse.Namespace) -> None:
    """Prints and writes the seconds of a step, by the spread of engines and of ticks and the way to exchange."""
    rows = []
    print("| engines | ticks | " + " | ".join(EXCHANGES) + " |\n|---:|---:|" + "---:|" * len(EXCHANGES))
    for lasting, passing in ((0.0, 0.0), (0.0, 0.2), (0.1, 0.0), (0.1, 0.2)):
        found: dict[str, list[float]] = {way: [] for way in EXCHANGES}
        for seed in range(settings.steps):
            work = workload(seed, KEEP_RATE, 9 * settings.prompts, settings.samples)
            context = float((work.lengths**2).mean() / work.lengths.mean() / 2)
            seconds = np.array([decode_step_s(max(running, 1), context) for running in range(SLOTS + 1)])
            speeds = np.exp(lasting * np.random.default_rng(seed).standard_normal(ENGINES))
            for way in EXCHANGES:
                engines = [
                    Paced(Engine(work, SLOTS), speed * seconds, factors([seed, index], passing))
                    for index, speed in enumerate(speeds)
                ]
                batch = Batch(work, settings, engines)
                found[way].append(knowing_all(batch) if way == "no exchange" else exchanging(way, batch))
        rows.append({"spread_of_engines": lasting, "spread_of_ticks": passing, "seconds": found})
        cells = " | ".join(f"{fmean(found[way]):.0f}" for way in EXCHANGES)
        print(f"| {lasting:.0%} | {passing:.0%} | {cells} |", flush=True)
    command = " ".join(["python", "benchmarks/rank_streams.py", *sys.argv[1:]])
    settings.out.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def factors(seed: list[int], spread: float) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    while True:
        yield from np.exp(spread * generator.standard_normal(1000)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--slots", type=int, default=256, help="responses that a rank decodes at once; 0: unlimited")
    parser.add_argument("--steps", type=int, default=20, help="rollout steps that a row is averaged over")
    parser.add_argument("--keep-rates", type=float, nargs="+", default=[0.4, 0.6, 0.8])
    parser.add_argument("--uneven", action="store_true", help="seconds on 32 engines of unequal speed")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rank_streams.json"))
    settings = parser.parse_args()
    if settings.uneven:
        uneven(settings)
        return
    print(f"`{' '.join(['python', 'benchmarks/rank_streams.py', *sys.argv[1:]])}`\n")
    print("| keep rate | way | margin | decode steps | against the stream | million tokens |")
    print("|---:|---|---:|---:|---:|---:|")
    for keep_rate in settings.keep_rates:
        stream = measure("stream", keep_rate, 1.0, settings)
        for way, margin in (("rounds", 1.0), ("rounds", 3.0), ("stream", 1.0), ("stream", 3.0)):
            is_reference = (way, margin) == ("stream", 1.0)
            steps, tokens = stream if is_reference else measure(way, keep_rate, margin, settings)
            row = f"| {keep_rate} | {way} | {margin:g} | {steps:,.0f} | {steps / stream[0]:.2f} | {tokens / 1e6:.1f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
