"""What the host does in a step between generation and the optimizer, per token, and for a step of the paper's size.

A workload is groups of 16 responses of uneven length. Measured are the exchange between ranks (every rank packs its
completions into bytes and unpacks everybody's), the metrics over all responses, their staleness, the batch's tensors,
and then the trainer's own functions with forward and backward passes that cost nothing: `score`, the objective's
credit, and the 16 updates of `StepUpdates.run` with their micro-batches of at most --budget tokens. What the updates do
with tensors on the policy's device is left to a device without arithmetic ("meta"). A step of the paper samples 82M
tokens (512 prompts x 16 responses of about 5,000 tokens, and as many again for groups that are filtered out) and trains
on 41M; exchange and metrics are taken over the former, the rest over the latter.

    OMP_NUM_THREADS=1 python benchmarks/host.py --clock processor --out benchmarks/results
"""

import argparse
import math
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from measure import arguments, machine, markdown, median, publish, seconds
from transformers import Qwen2Config

from dapo_lit.cli.command import compose
from dapo_lit.config import Config
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sample, SampleKey
from dapo_lit.lit.module import note_advantages
from dapo_lit.objective.tokens import NOTHING
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.metrics import rollout_metrics, staleness
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.rollout.report import Report, from_bytes, to_bytes
from dapo_lit.step.batch import TokenBatch, token_batch
from dapo_lit.step.loss import TokenData
from dapo_lit.step.scoring import PolicyForward, score, scored_by_first_update
from dapo_lit.step.updates import StepUpdates
from dapo_lit.switches.algorithm import completion_means, objective

GROUP, PROMPT, VOCABULARY, VERSION = 16, 200, 152_000, 7
SAMPLED, TRAINED = 82, 41
"""Million tokens of a step of the paper."""
STAGES = {
    "exchange": SAMPLED,
    "rollout_metrics": SAMPLED,
    "staleness": TRAINED,
    "token_batch": TRAINED,
    "scoring": TRAINED,
    "credit": TRAINED,
    "updates": TRAINED,
}
"""Each with the million tokens that it goes over in a step of the paper."""
UPDATES = 16


class FreeForward(PolicyForward):
    """Forward passes without a model: log-probs are 0."""

    def logprobs(self, micro: Any, model: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = torch.zeros(len(micro.targets), device=self.device)
        return zeros, zeros


class HostUpdates(StepUpdates):
    """The updates without their forward and backward passes."""

    def _accumulate(self, micro: Any, *rest: Any) -> torch.Tensor:
        return torch.zeros(())


def made(responses: int, tokens: int) -> list[Group]:
    """Responses of 0.5 to 1.5 times `tokens` tokens; ids as frequent as words are."""
    generator = np.random.default_rng(0)
    groups = []
    for number in range(max(1, responses // GROUP)):
        prompt = generator.integers(0, VOCABULARY, PROMPT).astype(np.int32)
        group = Group(1, number, Problem(f"p{number}", "", ""), 0, prompt)
        for index in range(GROUP):
            length = int(generator.integers(tokens // 2, 3 * tokens // 2))
            ids = (VOCABULARY ** generator.random(length)).astype(np.int32)
            logprobs = -generator.exponential(0.5, length).astype(np.float32)
            sample = Sample(SampleKey(1, group.problem.id, 0, index), ids, logprobs, True, VERSION)
            group.completions.append(Completion(sample, "", Score(index % 2 == 0, 1.0), 1.0 - index % 2, 0.0, 1.0))
        groups.append(group)
    return groups


def forward(config: Config, device: str, budget: int) -> FreeForward:
    """Of Qwen2.5-32B's shape, which decides what a sequence costs."""
    shape = Qwen2Config(hidden_size=5120, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8)
    return FreeForward(
        policy=SimpleNamespace(config=shape),
        reference=None,
        critic=None,
        ranks=Ranks(),
        device=torch.device(device),
        temperature=1.0,
        fp32_head=False,
        compiles=False,
        micro_batch_tokens=budget,
        shared_prompt="auto",
    )


def trainer_calls(groups: list[Group], batch: TokenBatch, budget: int) -> dict[str, Callable[[], object]]:
    """What the trainer does with a batch, stage by stage."""
    config = compose("+experiment=paper_qwen2_5_32b", f"algorithm.minibatch_prompts={max(1, len(groups) // UPDATES)}")
    goal = objective(config.algorithm, config.task.max_response_tokens)
    later = scored_by_first_update(config, goal, batch, 1, 1)
    scored = score(forward(config, "cpu", budget), goal, batch, later)
    tokens = goal.credit(batch, scored[0])

    def credit() -> TokenData:
        known = goal.credit(batch, scored[0])
        assert known.advantages is not None
        note_advantages(groups, completion_means(known.advantages, batch))
        return known

    def updates() -> None:
        steps = SimpleNamespace(
            take=lambda loss: True, critic_only=False, observer=None, counters=SimpleNamespace(tokens_trained=0)
        )
        HostUpdates(
            config=config,
            objective=goal,
            forward=forward(config, "meta", budget),
            steps=steps,  # type: ignore[arg-type]
            backward=lambda loss: None,
            step=1,
            batch=batch,
            tokens=tokens,
            statistics=NOTHING,
        ).run()

    return {
        "scoring": lambda: score(forward(config, "cpu", budget), goal, batch, later),
        "credit": credit,
        "updates": updates,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per million tokens of each stage, bytes a token of the records and of what ranks exchange."""
    tracemalloc.start()
    groups = made(args.responses, args.tokens)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    total = sum(completion.num_tokens for group in groups for completion in group.completions)
    loss_mask = torch.ones(total, dtype=torch.bool)

    def sent() -> bytes:
        completions = [completion for group in groups for completion in group.completions]
        return to_bytes(Report(False, None, pending=0, waiting=0, preemptions=0, completions=completions, withdrawn={}))

    batch = token_batch(groups, loss_mask, VERSION)
    calls = {
        "exchange": lambda: from_bytes(sent()),
        "rollout_metrics": lambda: rollout_metrics(groups),
        "staleness": lambda: staleness(groups, VERSION),
        "token_batch": lambda: token_batch(groups, loss_mask, VERSION),
        **trainer_calls(groups, batch, args.budget),
    }
    assert list(calls) == list(STAGES)
    took = {
        name: [seconds(call) for _ in range(args.warmup + args.repeats)][args.warmup :] for name, call in calls.items()
    }
    rates = {name: [s / total * 1e6 for s in times] for name, times in took.items()}
    steps = [
        math.fsum(rates[stage][repeat] * millions for stage, millions in STAGES.items())
        for repeat in range(args.repeats)
    ]
    return {
        "tokens": total,
        "seconds_per_million": {name: median(times) for name, times in rates.items()},
        "bytes_a_token": {"records": held / total, "exchanged": len(sent()) / total},
        "paper_step_s": steps,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=5000, help="mean length of a response")
    parser.add_argument("--budget", type=int, default=32_768, help="tokens of a micro-batch")
    args = parser.parse_args()
    if args.tiny:
        args.responses, args.tokens, args.budget, args.repeats, args.warmup = 32, 50, 2048, 1, 0
    torch.set_num_threads(args.threads)
    began, found = machine(args.threads), measure(args)
    rates = [f"{found['seconds_per_million'][stage]:.3f}" for stage in STAGES]
    sizes = [f"{found['bytes_a_token'][kind]:.1f}" for kind in ("records", "exchanged")]
    low, high = min(found["paper_step_s"]), max(found["paper_step_s"])
    step = f"{median(found['paper_step_s']):.1f} ({low:.1f} to {high:.1f})"
    header = ["seconds per million tokens", *STAGES, "bytes a token", "exchanged", "a step of the paper, s"]
    table = markdown(header, [[f"{found['tokens']:,} tokens", *rates, *sizes, step]])
    publish("host", args, began, ("numpy",), found, table)


if __name__ == "__main__":
    main()
