"""Decode steps until a batch is full where several ranks sample together: in rounds, or as a stream.

The engines and the workload are those of dynamic_sampling.py, with as many engines as ranks and 512 prompts x 16
responses for all of them.

- `rounds`: every rank samples its part of the groups that the keep rate predicts; all wait for the longest answer of
  the round, exchange what they have, and repeat for the missing groups.
- `stream`: dapo_lit's way. The ranks exchange what has ended every TICK_STEPS decode steps, and the engine with the
  fewest responses to give gets the next group.

    python benchmarks/rank_streams.py --ranks 8

Left out: what an exchange costs, verification, and the slow-down of a decode step as more sequences run.
"""

import argparse
import sys
from collections.abc import Callable
from statistics import fmean

from dynamic_sampling import Engine, Workload, workload

from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules, KeepRate
from dapo_lit.rollout.rank_sampling import TICK_STEPS


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--slots", type=int, default=256, help="responses that a rank decodes at once; 0: unlimited")
    parser.add_argument("--steps", type=int, default=20, help="rollout steps that a row is averaged over")
    parser.add_argument("--keep-rates", type=float, nargs="+", default=[0.4, 0.6, 0.8])
    settings = parser.parse_args()
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
