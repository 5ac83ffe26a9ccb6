"""Part d: the trainer without an engine at the shapes of Qwen2.5, random weights, long-tailed lengths.

Tokens a second, useful MFU (operations of the parameters and of causal attention, recomputation not counted, over the
rate of a large product) and the peak of memory next to what `dapo_lit.plan` predicts. Published: prime-rl 11.9k
tokens/s and 11 % (0.6B, 16k tokens, one H100), 10.1k and 27 % at 64k. Weights and optimiser states are in bf16 here.
Steps have different lengths and numbers of tokens, as in a run; what torch compiles again for them is counted.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from c_head import product_rate
from head_loss import head_loss
from part import DEVICE, ON_GPU, Report, milliseconds, options, peak_bytes, time_left
from transformers import AutoConfig, AutoModelForCausalLM

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse_as
from dapo_lit.forecast.architecture import architecture
from dapo_lit.policy.attention import layout, packed_hidden
from dapo_lit.policy.head import Head
from dapo_lit.policy.wrap import compiled_graphs, wrap_layers
from dapo_lit.step.balance import cost_of
from dapo_lit.step.optimizer import update_kernel
from dapo_lit_tools.planning.hardware import PlanConfig

SIMULATED = Path(__file__).parents[1] / "results" / "gpu" / "2026-11-26_h100" / "planned.jsonl"
CASES = (
    ("0.5B", 16384, "none"), ("0.5B", 65536, "full"), ("1.5B", 16384, "none"), ("1.5B", 65536, "full"),
    ("7B", 16384, "full"), ("7B", 65536, "full"),
)  # fmt: skip
BATCHES = 4


def planned(policy: str, tokens: int, recomputed: str) -> PlanConfig:
    """What is measured: weights in bf16 in one process, no engine, sequences as long as the longest of the case."""
    overrides = [
        "policy=hf", f"policy.path=Qwen/Qwen2.5-{policy}", "policy.dtype=bfloat16", "trainer.accelerator=gpu",
        f"trainer.micro_batch_tokens={tokens}", f"task.max_response_tokens={tokens // 2 - 64}",
        f"trainer.activation_checkpointing={recomputed}", "rollout=vllm", "rollout.vllm.placement=server",
        "rollout.vllm.server.urls=[http://a:1]", "rollout.vllm.server.folder=f",
    ]  # fmt: skip
    return parse_as(resolved(composed_tree(overrides, "plan")), PlanConfig)


def simulated_bytes(policy: str, tokens: int, recomputed: str) -> float:
    """The peak by `training_memory(planned(...), micro_batches=1)`, which took half a minute before the start."""
    rows = map(json.loads, SIMULATED.open(encoding="utf-8"))
    case = (policy, tokens, recomputed)
    [found] = [r for r in rows if (r["policy"], r["tokens"], r["recomputation"]) == case]
    return 1e9 * float(found["simulated_gb"])


def lengths_of(tokens: int, seed: int = 0) -> list[int]:
    """Long-tailed lengths (log-normal, spread 0.8) that add up to `tokens`."""
    draw, found = np.random.default_rng(seed), list[int]()
    while (left := tokens - sum(found)) > 0:
        found.append(min(left, int(np.clip(draw.lognormal(np.log(tokens / 24), 0.8), 16, tokens / 2))))
    return found


def batches_of(tokens: int) -> list[list[int]]:
    """Lengths of the micro-batches that are measured: the first one full, each other one with a little less."""
    return [lengths_of(tokens - index * tokens // 32, seed=index) for index in range(BATCHES)]


def measure_case(policy: str, tokens: int, recomputed: str, peak: float, args: argparse.Namespace) -> dict[str, Any]:
    config = planned(policy, tokens, recomputed)
    sizes = architecture(config.policy)
    if args.tiny:
        sizes |= {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
                         "vocab_size": 512}  # fmt: skip
    shape = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    compute = torch.bfloat16 if ON_GPU else torch.float32
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(shape, dtype=compute).eval()
    wrap_layers(model, recomputes=config.trainer.activation_checkpointing == "full", compiles=args.compiled)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, **update_kernel({DEVICE}))
    batches = batches_of(tokens)
    ids = torch.randint(0, shape.vocab_size, (tokens,), device=DEVICE)

    def step(lengths: list[int]) -> None:
        total = sum(lengths)
        packed, rows = layout(lengths, device=DEVICE), torch.arange(total // 10, total - 1, device=DEVICE)
        hidden = packed_hidden(model, ids[:total], packed)[rows]
        head, targets = Head.of(model), ids[rows + 1]
        loss, _ = head_loss(hidden, head, targets, lambda new, _: -new / total, compiles=args.compiled)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step(batches[0])  # compiles, and makes the optimiser's states, with which every later step lives
    graphs = compiled_graphs()
    memory = peak_bytes(lambda: step(batches[0]))
    ms = milliseconds(lambda: list(map(step, batches)), 1) / BATCHES
    cost, of_head = cost_of(shape), shape.vocab_size * shape.hidden_size
    trained = sum(map(sum, batches)) / BATCHES
    useful = sum(6 * (sum(map(cost, lengths)) + (sum(lengths) * 9 // 10) * of_head) for lengths in batches) / BATCHES
    predicted = None if args.tiny else simulated_bytes(policy, tokens, recomputed)
    return {
        "ms": ms, "tokens_per_s": trained / ms * 1e3, "mfu": useful / ms * 1e3 / peak, "peak_bytes": memory,
        "planned_bytes": predicted, "sequences": [len(lengths) for lengths in batches],
        "recompiles": compiled_graphs() - graphs,
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--compiled", action="store_true", help="layers and the head's arithmetic")
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    args = parser.parse_args()
    cases = [("0.5B", 512, "none"), ("0.5B", 512, "full")] if args.tiny else list(CASES)
    header = ["shape", "ms a step", "tokens/s", "useful MFU", "peak GB", "planned GB"]
    report = Report("d_trainer_compiled" if args.compiled else "d_trainer", args, header)
    peak = product_rate(256 if args.tiny else 8192, torch.bfloat16 if ON_GPU else torch.float32)
    report.add("product_rate", peak)
    for index, (policy, tokens, recomputed) in enumerate(cases):
        if index not in args.cases or not time_left(args):
            continue
        name = f"{policy}, {tokens:,} tokens, checkpointing {recomputed}{', compiled' if args.compiled else ''}"
        try:
            of = measure_case(policy, tokens, recomputed, peak, args)
        except torch.OutOfMemoryError as error:
            report.add(name, {"error": str(error)[:200]}, "out of memory", "", "", "", "")
            continue
        finally:
            torch.cuda.empty_cache()
        gb = ["" if of[key] is None else f"{of[key] / 1e9:.1f}" for key in ("peak_bytes", "planned_bytes")]
        report.add(name, of, f"{of['ms']:.0f}", f"{of['tokens_per_s']:,.0f}", f"{100 * of['mfu']:.1f} %", *gb)
    report.close()


if __name__ == "__main__":
    main()
