"""A training step compared with the machine's limits: floor / measured time, by phase.

The floor of a phase is the time of its multiply-adds at the rate of the machine's fastest matrix product plus that of
the bytes it must move at the rate of a copy. Both rates are measured first, with the same threads. Counted are:

    generate  each group's prompt once; for each token the matrices and the head; keys and values read at each token
    score     the matrices, causal attention and the head, of completions whose old log-probs are needed
    train     three times that, of all completions, a group's prompt once; AdamW's seven passes over the parameters
    sync      the parameters read and written once

Not counted: norms, activations, softmax, sampling. Verification and the rest of a step outside the five phases have no
floor; their share of the step is shown.

    OMP_NUM_THREADS=1 python benchmarks/step_limit.py --out benchmarks/results
"""

import tempfile
from typing import Any

import torch
import transformers
from lightning import Callback
from measure import arguments, in_turns, machine, markdown, median, publish, seconds
from vs_trl_sides import Work, config_of, quiet

from dapo_lit.build.components import RunComponents
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.run_folder import open_run
from dapo_lit.step.balance import cost_of
from dapo_lit.step.batch import RolloutStep
from dapo_lit.train import arm_of

PHASES = ("generate", "verify", "score", "train", "sync")
ADAMW_PASSES = 7
"""Reads parameter, gradient and two moments; writes parameter and moments."""


def matrix_rate(size: int, repeats: int) -> float:
    """Multiply-adds a second of the fastest of several float32 products."""
    found = []
    for rows, columns in ((size, size), (4 * size, size // 4)):
        a, b = torch.randn(rows, size), torch.randn(size, columns)
        took = in_turns({"": lambda a=a, b=b: seconds(lambda: a @ b)}, 1, repeats)[""]  # type: ignore[misc]
        found.append(rows * size * columns / min(took))
    return max(found)


def copy_rate(megabytes: int, repeats: int) -> float:
    """Bytes read and written a second."""
    source = torch.randn(megabytes * 250_000)
    target = torch.empty_like(source)
    took = in_turns({"": lambda: seconds(lambda: target.copy_(source))}, 1, repeats)[""]
    return 2 * source.nbytes / min(took)


class Floors(Callback):
    """Records seconds, multiply-adds and bytes of each phase of each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def on_train_batch_end(self, trainer: Any, module: DAPOModule, outputs: Any, batch: RolloutStep, i: int) -> None:
        metrics = batch.collected.metrics | module.step_metrics | {"time/sync_s": batch.sync_s}
        wall = module.counters.wall_s - sum(s["wall_s"] for s in self.steps)
        work = generation(module, batch) | updates(module, batch)
        self.steps.append({"wall_s": wall, "seconds": {p: metrics[f"time/{p}_s"] for p in PHASES}, "work": work})


def generation(module: DAPOModule, batch: RolloutStep) -> dict[str, tuple[float, float]]:
    config = module.policy.config
    cost, head = cost_of(config), config.hidden_size * config.vocab_size
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * module.policy.dtype.itemsize
    products = moved = 0.0
    for group in batch.collected.generated:
        prompt = len(group.prompt_ids)
        products += cost(prompt)
        for completion in group.completions:
            tokens = completion.num_tokens
            products += cost(prompt + tokens) - cost(prompt) + tokens * head
            moved += kv_bytes * (tokens * prompt + tokens * tokens / 2)
    return {"generate": (products, moved)}


def updates(module: DAPOModule, batch: RolloutStep) -> dict[str, tuple[float, float]]:
    config = module.policy.config
    cost, head = cost_of(config), config.hidden_size * config.vocab_size
    parameters = sum(p.numel() * p.element_size() for p in module.policy.parameters())
    algorithm = module.config.algorithm
    score = train = 0.0
    for group in batch.collected.accepted:
        prompt = len(group.prompt_ids)
        train += cost(prompt)
        for completion in group.completions:
            tokens = completion.num_tokens
            train += cost(prompt + tokens) - cost(prompt) + tokens * head
    num_updates = -(-len(batch.collected.accepted) // algorithm.minibatch_prompts)
    if algorithm.old_logprobs == "recompute" and num_updates:
        score = train * (1 - 1 / num_updates)  # the first mini-batch is scored by its own update
    return {
        "verify": (0.0, 0.0),
        "score": (score, 0.0),
        "train": (3 * train, num_updates * ADAMW_PASSES * parameters),
        "sync": (0.0, 2.0 * parameters),
    }


def run(work: Work, steps: int) -> list[dict[str, Any]]:
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as runs:
        config = config_of(work, f"runs_dir={runs}", f"budget.steps={steps}")
        parts, floors = RunComponents(config), Floors()
        folder = open_run(config, [], arm_of(config))
        trainer = build_trainer(config, [Recorder(config, folder, Loggers(config, folder)), floors])
        trainer.fit(DAPOModule(config, lambda: parts.policy), datamodule=RolloutDataModule(config, parts))
    return floors.steps


def table(label: str, steps: list[dict[str, Any]], products: float, copies: float) -> list[list[str]]:
    """Rows of medians over the steps; the last two are the time outside the phases and the whole step."""
    rows, wall = [], median([s["wall_s"] for s in steps])
    floors = 0.0
    for phase in PHASES:
        took = median([s["seconds"][phase] for s in steps])
        floor = median([s["work"][phase][0] / products + s["work"][phase][1] / copies for s in steps])
        floors += floor
        ratio = f"{floor / took:.2f}" if floor and took else ""
        rows.append([f"{label}: {phase}", f"{took * 1e3:,.1f}", f"{took / wall:.1%}", f"{floor * 1e3:,.1f}", ratio])
    left = median([s["wall_s"] - sum(s["seconds"].values()) for s in steps])
    rows.append([f"{label}: the rest", f"{left * 1e3:,.1f}", f"{left / wall:.1%}", "", ""])
    rows.append([f"{label}: a step", f"{wall * 1e3:,.1f}", "100 %", f"{floors * 1e3:,.1f}", f"{floors / wall:.2f}"])
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--work", nargs="+", choices=["chain_sum", "smollm2"], default=["chain_sum"])
    parser.add_argument("--steps", type=int, default=8, help="after the first, which is not counted")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    quiet()
    if args.tiny:
        args.steps, args.repeats = 2, 2
    torch.set_num_threads(args.threads)
    began = machine(args.threads)
    products, copies = (
        matrix_rate(256 if args.tiny else 1024, args.repeats),
        copy_rate(16 if args.tiny else 256, args.repeats),
    )
    overrides = {
        "chain_sum": ("algorithm.techniques.dynamic_sampling=true",),
        "smollm2": ("+experiment=smollm2_arithmetic",),
    }
    small = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2")
    rows, results = [], {"multiply_adds_per_s": products, "copied_bytes_per_s": copies}
    for label in args.work:
        steps = run(Work(small if args.tiny else overrides[label], args.threads), args.steps + 1)[1:]
        results[label] = steps
        rows += table(label, steps, products, copies)
    text = markdown(["", "ms", "share of the step", "floor, ms", "floor / measured"], rows)
    text += f"\n\nMatrix products {2 * products / 1e9:.0f} GFLOP/s, copies {copies / 1e9:.1f} GB/s (read and written)."
    publish("step_limit", args, began, ("transformers", "lightning"), results, text)


if __name__ == "__main__":
    main()
