"""Steps an hour of a 32B policy on 128 GPUs, sampled 0, 1, 2 and 4 steps ahead (`rollout.steps_ahead`).

Simulated, on no GPU: the streams of rank_streams.py (engines of 4 GPUs, 256 sequences each; lengths of
dynamic_sampling.py; 512 mixed groups of 16 a step, 6 of 10 groups mixed), with the seconds of a decode step and of
training as `dapo-lit plan` models them (dapo_lit_tools/planning/duration.py; old log-probs and 16 updates with full
checkpointing).

- shared: all GPUs sample, then train; k = 0.
- divided: step s is sampled once step s - 1 is and the weights after step s - 1 - k are there, and trained on once it
  is sampled and step s - 1 is trained on. The best division is reported.

Steps an hour are those of the second half, when the queue has filled.

    python benchmarks/steps_ahead.py        # the table, and benchmarks/results/steps_ahead.json

Left out: what an exchange costs, verification, prefill, evaluation, checkpoints, and how evenly training divides.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from dynamic_sampling import Engine, workload

from dapo_lit.forecast.architecture import QWEN2_5
from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules, KeepRate
from dapo_lit.rollout.rank_sampling import TICK_STEPS
from dapo_lit_tools.planning.duration import Engines, Shape, Tokens, decode
from dapo_lit_tools.planning.hardware import GPUS

GPUS_IN_ALL, GPUS_OF_ENGINE, SLOTS = 128, 4, 256
PROMPTS, SAMPLES, KEEP_RATE, PROMPT_TOKENS = 512, 16, 0.6, 200
SAMPLING_GPUS = range(56, 105, 8)
"""Divisions that are tried."""
H800 = GPUS["h800"]
QWEN = Shape(*QWEN2_5["32B"])


def decode_step_s(running: int, context: float) -> float:
    """Seconds of a decode step of an engine; context: mean response tokens so far."""
    engine = Engines(1, GPUS_OF_ENGINE, running, np.inf)
    return decode(QWEN, H800, engine, running, [2 * context] * 257, PROMPT_TOKENS).seconds / (2 * context)


def sampled(num_engines: int, carry_over: str, steps: int) -> list[tuple[float, float, float]]:
    """(seconds, response tokens trained on, sum of their squared lengths) of each step."""
    work = workload(0, KEEP_RATE, 2000 + steps * 1400, SAMPLES)
    context = float((work.lengths**2).mean() / work.lengths.mean() / 2)
    step_s = np.array([decode_step_s(max(running, 1), context) for running in range(SLOTS + 1)])
    rules, rate = CollectionRules(PROMPTS, max_rounds=9), KeepRate(PROMPTS, PROMPTS / KEEP_RATE)
    engines = [Engine(work, SLOTS) for _ in range(num_engines)]
    found, carried, submitted, clock = [], list[int](), 0, 0
    for _ in range(steps):
        admission, groups, seconds = Admission(rules, rate), list(carried), 0.0
        ended = set().union(*(engine.ended for engine in engines))
        for place, group in enumerate(carried):
            admission.submit(carried=True)
            if group in ended:
                admission.resolve(place, bool(work.mixed[group]))
        places = {group: place for place, group in enumerate(groups)}
        while not admission.full:
            while admission.wanted and min(engine.pending for engine in engines) < SLOTS:
                places[submitted] = admission.submit()
                groups.append(submitted)
                min(engines, key=lambda engine: engine.pending).submit(submitted)
                submitted += 1
            seconds += TICK_STEPS * step_s[max(min(engine.pending, SLOTS) for engine in engines)]
            clock += TICK_STEPS
            for engine in engines:
                for group in engine.until(clock):
                    admission.resolve(places[group], bool(work.mixed[group]))
            if carry_over == "none" and admission.cut is not None:
                for engine in engines:
                    engine.withdraw(beyond=groups[admission.cut])
        lengths = work.lengths[[groups[place] for place in admission.accepted]]
        found.append((seconds, float(lengths.sum()), float((lengths**2).sum())))
        left = groups[admission.num_examined :] if carry_over == "all" else []
        ended = set().union(*(engine.ended for engine in engines))
        carried = [group for group in left if group not in ended or work.mixed[group]]
        for engine in engines if carry_over == "none" else ():
            engine.withdraw(beyond=-1)
        rate.update(*admission.counts)
        rate.end_step()
    return found


def trained_s(gpus: int, tokens: float, squares: float) -> tuple[float, float]:
    """Seconds of training on a step, and of giving the engines its weights."""
    sequences = PROMPTS * SAMPLES
    whole = squares + 2 * PROMPT_TOKENS * tokens + sequences * PROMPT_TOKENS**2
    work = Tokens(sequences * PROMPT_TOKENS + tokens, whole, tokens)
    seconds = QWEN.scoring(work).seconds(H800, gpus) + QWEN.training(work, recomputes=1.0).seconds(H800, gpus)
    return seconds, 2 * QWEN.parameters / (1e9 * H800.network_gb_s)


def steps_per_hour(steps: list[tuple[float, float, float]], ahead: int, gpus: int) -> float:
    """Steps that are trained on in an hour, on average over the second half of them.

    gpus: of the trainer.
    """
    sampling_ends, weights_at = 0.0, [0.0]  # weights_at[s]: those after step s
    for number, (seconds, tokens, squares) in enumerate(steps, start=1):
        sampling_ends = max(sampling_ends, weights_at[max(number - 1 - ahead, 0)]) + seconds
        train, sync = trained_s(gpus, tokens, squares)
        weights_at.append(max(sampling_ends, weights_at[-1]) + train + sync)
    half = len(steps) // 2
    return 3600 * (len(steps) - half) / (weights_at[-1] - weights_at[half])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/steps_ahead.json"))
    settings = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for carry_over in ("none", "all"):
        of = {gpus: sampled(gpus // GPUS_OF_ENGINE, carry_over, settings.steps) for gpus in [*SAMPLING_GPUS, 128]}
        shared = steps_per_hour(of[GPUS_IN_ALL], 0, GPUS_IN_ALL)
        rows.append({"carry_over": carry_over, "gpus": "shared", "steps_ahead": 0, "steps_per_hour": shared})
        print(json.dumps(rows[-1]), flush=True)
        for ahead in (0, 1, 2, 4):
            best, gpus = max((steps_per_hour(of[n], ahead, GPUS_IN_ALL - n), n) for n in SAMPLING_GPUS)
            divided = f"{gpus} sample, {GPUS_IN_ALL - gpus} train"
            rows.append({"carry_over": carry_over, "gpus": divided, "steps_ahead": ahead, "steps_per_hour": best})
            print(json.dumps(rows[-1]), flush=True)
    command = " ".join(["python", "benchmarks/steps_ahead.py", *sys.argv[1:]])
    settings.out.write_text(
        json.dumps({"command": command, "steps": settings.steps, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
