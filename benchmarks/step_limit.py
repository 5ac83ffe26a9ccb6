"""A training step compared with the machine's limits: floor / measured time, by phase and by part.

The floor of a phase is the time of its multiply-adds at the rate of the machine's fastest matrix product plus that of
the bytes it must move at the rate of a copy. Both rates are measured first, with the same threads. What completions of
a group begin with, their prompt included, is computed once. Counted are:

    generate  for each token the matrices and the head; keys and values read at each token
    score     the matrices, causal attention and the head, of completions whose old log-probs are needed
    train     three times that, of all completions; AdamW's seven passes over the parameters
    sync      the parameters read and written once

Not counted: norms, activations, softmax, sampling. Verification and the rest of a step outside the five phases have no
floor; their share of the step is shown.

One more step runs under torch's profiler, which says where sampling and updates (score and train) spend their time:
products of the matrices, attention, copies, other arithmetic, and the rest, in which no kernel runs.

    OMP_NUM_THREADS=1 python benchmarks/step_limit.py --out benchmarks/results
"""

import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from lightning import Callback
from measure import arguments, in_turns, machine, markdown, median, publish, seconds
from torch.profiler import ProfilerActivity, profile
from vs_trl import SMOLLM2
from vs_trl_sides import Work, config_of, quiet

from dapo_lit.build.components import RunComponents
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.rollout.records import Group
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.run_folder import open_run
from dapo_lit.step.balance import cost_of
from dapo_lit.step.batch import RolloutStep
from dapo_lit.train import arm_of

PHASES = ("generate", "verify", "score", "train", "sync")
ADAMW_PASSES = 7
"""Reads parameter, gradient and two moments; writes parameter and moments."""
ATTENTION = {"bmm", "baddbmm", "_softmax", "_softmax_backward_data"}
"""Beside scaled_dot_product_attention: what the sampler's decoder, and nothing else, calls."""
COPIES = {"copy_", "cat", "clone", "fill_", "zero_", "index", "index_select", "index_add_", "index_copy_", "gather"}
COPIES |= {"_index_put_impl_", "scatter_add_", "embedding_dense_backward", "masked_select", "stack"}
PARTS = ("products", "attention", "copies", "other arithmetic", "no kernel")


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


def needed(module: DAPOModule, groups: Iterable[Group]) -> dict[str, float]:
    """Multiply-adds of a forward pass over the groups: of the matrices with the head, and of causal attention.

    What completions of a group begin with in common is counted once.
    """
    config = module.policy.config
    cost, head = cost_of(config), config.hidden_size * config.vocab_size
    # cost(t) is linear in t but for attention, which is quadratic
    attention = (cost(2) - 2 * cost(1)) / 2
    found = dict.fromkeys(("products", "attention"), 0.0)
    for group in groups:
        prompt, responses = len(group.prompt_ids), [c.sample.response_ids for c in group.completions]
        own = {tuple(ids[:end]) for ids in responses for end in range(1, len(ids) + 1)}
        found["products"] += (cost(1) - attention) * (prompt + len(own)) + head * len(own)
        # t^2 of a sequence, so 2 t - 1 of its t-th token
        found["attention"] += attention * (prompt**2 + sum(2 * (prompt + len(ids)) - 1 for ids in own))
    return found


def cache_bytes(module: DAPOModule, batch: RolloutStep) -> float:
    """Keys and values that are read while the tokens are sampled: those of all tokens before each."""
    config = module.policy.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * module.policy.dtype.itemsize
    return sum(
        kv_bytes * (completion.num_tokens * len(group.prompt_ids) + completion.num_tokens**2 / 2)
        for group in batch.collected.generated
        for completion in group.completions
    )


def generation(module: DAPOModule, batch: RolloutStep) -> dict[str, tuple[float, float]]:
    work = sum(needed(module, batch.collected.generated).values())
    return {"generate": (work, cache_bytes(module, batch))}


def passes(module: DAPOModule, batch: RolloutStep) -> tuple[float, int]:
    """Forward passes of scoring, over all accepted completions, and updates."""
    algorithm = module.config.algorithm
    number = -(-len(batch.collected.accepted) // algorithm.minibatch_prompts)
    # the first mini-batch is scored by its own update
    return (1 - 1 / number if algorithm.old_logprobs == "recompute" and number else 0.0), number


def updates(module: DAPOModule, batch: RolloutStep) -> dict[str, tuple[float, float]]:
    parameters = sum(p.numel() * p.element_size() for p in module.policy.parameters())
    forward = sum(needed(module, batch.collected.accepted).values())
    scored, number = passes(module, batch)
    return {
        "verify": (0.0, 0.0),
        "score": (scored * forward, 0.0),
        "train": (3 * forward, number * ADAMW_PASSES * parameters),
        "sync": (0.0, 2.0 * parameters),
    }


def part_of(kernel: str) -> str:
    """The part that a profiler's event belongs to."""
    library, _, name = kernel.partition("::")
    if library != "aten":
        return "no kernel"
    if "scaled_dot_product" in name or name in ATTENTION:
        return "attention"
    if name in ("mm", "addmm", "addmm_"):
        return "products"
    return "copies" if name in COPIES else "other arithmetic"


class Parts(Callback):
    """Profiles the last step of a run; `found`: seconds, multiply-adds and bytes by part of sampling and updates."""

    def __init__(self, last: int) -> None:
        self.last, self.found = last, dict[str, dict[str, dict[str, float]]]()

    def on_train_start(self, trainer: Any, module: DAPOModule) -> None:
        if self.last == 0:
            self._begin()

    def on_train_batch_start(self, trainer: Any, module: DAPOModule, batch: RolloutStep, i: int) -> None:
        if i == self.last:
            forward = needed(module, batch.collected.generated)
            moved = {"products": 0.0, "attention": cache_bytes(module, batch)}
            self._end("sampling", {part: (products, moved[part]) for part, products in forward.items()})
            self._begin()

    def on_train_batch_end(self, trainer: Any, module: DAPOModule, outputs: Any, batch: RolloutStep, i: int) -> None:
        if i + 1 == self.last:
            self._begin()
        if i == self.last:
            times = 3 + passes(module, batch)[0]
            forward = needed(module, batch.collected.accepted)
            self._end("updates", {part: (times * products, 0.0) for part, products in forward.items()})

    def _begin(self) -> None:
        self.profile, self.began = profile(activities=[ProfilerActivity.CPU]), time.perf_counter()
        self.profile.__enter__()

    def _end(self, phase: str, work: Mapping[str, tuple[float, float]]) -> None:
        wall = time.perf_counter() - self.began
        self.profile.__exit__(None, None, None)
        took = dict.fromkeys(PARTS, 0.0)
        for event in self.profile.key_averages():
            took[part_of(event.key)] += event.self_cpu_time_total / 1e6
        # Python between the events too
        took["no kernel"] = wall - sum(took[part] for part in PARTS[:-1])
        self.found[phase] = {"seconds": took, "work": dict(work)}


def run(work: Work, steps: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The steps, and the parts of one more."""
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as runs:
        config = config_of(work, f"runs_dir={runs}", f"budget.steps={steps + 1}")
        components, floors, parts = RunComponents(config), Floors(), Parts(steps)
        folder = open_run(config, [], arm_of(config))
        trainer = build_trainer(config, [Recorder(config, folder, Loggers(config, folder)), floors, parts])
        trainer.fit(DAPOModule(config, lambda: components.policy), datamodule=RolloutDataModule(config, components))
    return floors.steps[:steps], parts.found


def parts_table(label: str, parts: dict[str, Any], products: float, copies: float) -> list[list[str]]:
    """Rows of the profiled step; a floor where multiply-adds are counted."""
    rows = []
    for phase, found in parts.items():
        wall = sum(found["seconds"].values())
        for part, took in found["seconds"].items():
            work, moved = found["work"].get(part, (0.0, 0.0))
            floor = work / products + moved / copies
            ratio = [f"{floor * 1e3:,.1f}", f"{floor / took:.2f}"] if floor and took else ["", ""]
            rows.append([f"{label}, {phase}: {part}", f"{took * 1e3:,.1f}", f"{took / wall:.1%}", *ratio])
    return rows


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
        "smollm2": SMOLLM2,
    }
    small = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2")
    rows, of_parts = list[list[str]](), list[list[str]]()
    results: dict[str, Any] = {"multiply_adds_per_s": products, "copied_bytes_per_s": copies, "parts": {}}
    for label in args.work:
        steps, parts = run(Work(small if args.tiny else overrides[label], args.threads), args.steps + 1)
        results[label], results["parts"][label] = steps[1:], parts
        rows += table(label, steps[1:], products, copies)
        of_parts += parts_table(label, parts, products, copies)
    text = markdown(["", "ms", "share of the step", "floor, ms", "floor / measured"], rows)
    text += "\n\n" + markdown(["", "ms", "share", "floor, ms", "floor / measured"], of_parts)
    text += f"\n\nMatrix products {2 * products / 1e9:.0f} GFLOP/s, copies {copies / 1e9:.1f} GB/s (read and written)."
    publish("step_limit", args, began, ("transformers", "lightning"), results, text)


if __name__ == "__main__":
    main()
