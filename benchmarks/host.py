"""What the host does between generation and training, per token, and for a step of the paper's size.

A workload is groups of 16 responses of uneven length. Measured are the exchange between ranks (every rank pickles its
completions and unpickles everybody's), the metrics over all responses, their staleness, the batch's tensors, and its
micro-batches of at most --budget tokens. A step of the paper samples 82M tokens (512 prompts x 16 responses of about
5,000 tokens, and as many again for groups that are filtered out) and trains on 41M; exchange and metrics are taken
over the former, the rest over the latter.

--before measures a checkout from before records were arrays, in a process of its own. Without it the figures of the
last record in --out are kept.

    OMP_NUM_THREADS=1 python benchmarks/host.py --out benchmarks/results
"""

import argparse
import json
import math
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import arguments, machine, markdown, median, publish, seconds

GROUP, PROMPT, VOCABULARY, VERSION = 16, 200, 152_000, 7
SAMPLED, TRAINED = 82, 41
"""Million tokens of a step of the paper."""
STAGES = {
    "exchange": SAMPLED,
    "rollout_metrics": SAMPLED,
    "staleness": TRAINED,
    "token_batch": TRAINED,
    "micro-batches": TRAINED,
}
"""Each with the million tokens that it goes over in a step of the paper."""


class Layout:
    """The package's functions, where this checkout has them."""

    def __init__(self) -> None:
        def find(name: str, *modules: str) -> Any:
            for module in modules:
                try:
                    return getattr(import_module(f"dapo_lit.{module}"), name)
                except (ImportError, AttributeError):
                    continue
            return None

        self.sample = find("Sample", "engines.samples", "rollout.records")
        self.key = find("SampleKey", "engines.samples", "rollout.records")
        self.problem = find("Problem", "data.problem")
        self.score = find("Score", "rewards.score")
        self.completion = find("Completion", "rollout.records")
        self.group = find("Group", "rollout.records")
        self.metrics = find("rollout_metrics", "rollout.metrics")
        self.staleness = find("staleness", "rollout.metrics", "rollout.accumulation")
        self.token_batch = find("token_batch", "step.batch", "step.packing", "rollout.packing")
        self.packed = find("packed", "rollout.ranks")
        self.unpacked = find("unpacked", "rollout.ranks")
        self.has_arrays = self.packed is None

    def groups(self, responses: int, tokens: int) -> list[Any]:
        """Responses of 0.5 to 1.5 times `tokens` tokens; ids as frequent as words are."""
        generator = np.random.default_rng(0)
        kept = (lambda array: array) if self.has_arrays else (lambda array: tuple(array.tolist()))
        made = []
        for number in range(max(1, responses // GROUP)):
            problem = self.problem(f"p{number}", "", "")
            prompt = kept(generator.integers(0, VOCABULARY, PROMPT).astype(np.int32))
            group = self.group(1, number, problem, 0, prompt)
            for index in range(GROUP):
                length = int(generator.integers(tokens // 2, 3 * tokens // 2))
                ids = (VOCABULARY ** generator.random(length)).astype(np.int32)
                logprobs = -generator.exponential(0.5, length).astype(np.float32)
                key = self.key(1, problem.id, 0, index)
                sample = self.sample(key, kept(ids), kept(logprobs), True, VERSION)
                score = self.score(index % 2 == 0, 1.0)
                group.completions.append(self.completion(sample, "", score, 1.0, 0.0, 1.0))
            made.append(group)
        return made

    def send(self, groups: list[Any]) -> bytes:
        """What ranks send each other, as torch.distributed pickles it."""
        completions = [group.completions for group in groups]
        return pickle.dumps(completions if self.has_arrays else [self.packed(c) for c in completions])

    def receive(self, sent: bytes) -> list[Any]:
        found = pickle.loads(sent)
        return found if self.has_arrays else [self.unpacked(c) for c in found]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per million tokens of each stage, bytes a token of the records and of what ranks exchange."""
    layout = Layout()
    tracemalloc.start()
    groups = layout.groups(args.responses, args.tokens)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    total = sum(completion.num_tokens for group in groups for completion in group.completions)
    shape = (total,) if layout.has_arrays else (len(groups), GROUP)  # a mask per token, and one per completion before
    loss_mask = torch.ones(shape, dtype=torch.bool)
    sent = layout.send(groups)
    batch = layout.token_batch(groups, loss_mask, VERSION)

    def micro_batches() -> None:
        for completions in torch.arange(len(batch.sequences)).split(512):
            list(batch.micro_batches(completions.tolist(), args.budget, shares_prompts=True))

    calls: dict[str, Callable[[], object]] = {
        "exchange": lambda: layout.receive(layout.send(groups)),
        "rollout_metrics": lambda: layout.metrics(groups),
        "staleness": lambda: layout.staleness(groups, VERSION),
        "token_batch": lambda: layout.token_batch(groups, loss_mask, VERSION),
        "micro-batches": micro_batches,
    }
    assert list(calls) == list(STAGES)
    took = {
        name: [seconds(call) for _ in range(args.warmup + args.repeats)][args.warmup :] for name, call in calls.items()
    }
    metrics = layout.metrics(groups)
    return {
        "tokens": total,
        "seconds_per_million": {name: median(times) / total * 1e6 for name, times in took.items()},
        "bytes_a_token": {"records": held / total, "exchanged": len(sent) / total},
        "checks": {
            key: metrics[f"rollout/{key}"] for key in ("entropy", "prob_mean", "repetition_frac", "unique_frac")
        },
    }


def measured_in(checkout: Path, options: list[str]) -> dict[str, Any]:
    """`measure` with the package of another checkout."""
    done = subprocess.run(
        [sys.executable, __file__, *options, "--measure"],
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def step_seconds(found: dict[str, Any]) -> float:
    """Of a step of the paper, on every rank."""
    return math.fsum(found["seconds_per_million"][stage] * millions for stage, millions in STAGES.items())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--responses", type=int, default=192)
    parser.add_argument("--tokens", type=int, default=5000, help="mean length of a response")
    parser.add_argument("--budget", type=int, default=32_768, help="tokens of a micro-batch")
    parser.add_argument("--before", type=Path, help="checkout whose records are tuples")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        args.responses, args.tokens, args.budget, args.repeats, args.warmup = 32, 50, 2048, 1, 0
    torch.set_num_threads(args.threads)
    if args.measure:
        print(json.dumps(measure(args)))
        return
    began, results = machine(args.threads), {}
    record = args.out / "host.json" if args.out else None
    if args.before:
        options = [option for option in sys.argv[1:] if option == "--tiny"]
        options += [
            f"--{name}={getattr(args, name)}" for name in ("responses", "tokens", "budget", "repeats", "warmup")
        ]
        results["tuples"] = measured_in(args.before, options)
    elif record and record.is_file():
        results |= {k: v for k, v in json.loads(record.read_text())["results"].items() if k == "tuples"}
    results["arrays"] = measure(args)
    rows = []
    for name, found in results.items():
        found["paper_step_s"] = step_seconds(found)
        rates = [f"{found['seconds_per_million'][stage]:.3f}" for stage in STAGES]
        sizes = [f"{found['bytes_a_token'][kind]:.1f}" for kind in ("records", "exchanged")]
        rows.append([f"{name} ({found['tokens']:,} tokens)", *rates, *sizes, f"{found['paper_step_s']:.1f}"])
    header = ["seconds per million tokens", *STAGES, "bytes a token", "exchanged", "a step of the paper, s"]
    args.before = None  # a path of this machine
    publish("host", args, began, ("numpy",), results, markdown(header, rows))


if __name__ == "__main__":
    main()
