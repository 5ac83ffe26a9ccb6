"""Predicts the seconds of a rollout step by phase: bytes and operations of each phase over the hardware's rates.

With N parameters (N_b without embedding and head), L layers, attention width d_a, keys and values of kv bytes a token,
g GPUs of F operations and B bytes a second, sequences of s = prompt + response tokens:

- decode step of an engine over tp GPUs with M sequences of mean context c:
  t = max((2 N + M c kv) / (tp B), 2 N M / (tp F)) / efficiency, in bf16
- generation = max(tokens / (M engines) t, longest response t(M = 1)), and prefill 2 N_b tokens / (g F), once a group
- a forward pass: 2 N sum(s) + 2 L d_a sum(s^2) operations; backward twice the products and 2.5 times the attention;
  full checkpointing one forward more
- optimiser: 28 bytes a parameter; synchronisation: 2 N bytes through the network, or into the engine's memory

The efficiencies are fitted on one published run (published_runs.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo_lit.config.forecast import Hardware, Workload


@dataclass(frozen=True)
class Shape:
    """Sizes of a policy."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool
    head_width: int | None = None
    """None: hidden / heads."""

    @property
    def head_dim(self) -> int:
        return self.head_width or self.hidden // self.heads

    @classmethod
    def of(cls, architecture: Mapping[str, Any]) -> "Shape":
        return cls(
            layers=architecture["num_hidden_layers"],
            hidden=architecture["hidden_size"],
            mlp=architecture["intermediate_size"],
            heads=architecture["num_attention_heads"],
            key_heads=architecture["num_key_value_heads"],
            vocabulary=architecture.get("vocab_size", 64),
            tied=bool(architecture.get("tie_word_embeddings")),
            head_width=architecture.get("head_dim"),
        )

    @property
    def body(self) -> float:
        """Parameters in matrix products of a layer, over all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.key_heads)
        return float(self.layers * (attention + 3 * self.hidden * self.mlp))

    @property
    def head(self) -> float:
        return float(self.vocabulary * self.hidden)

    @property
    def parameters(self) -> float:
        return self.body + self.head * (1 if self.tied else 2)

    @property
    def cache_bytes(self) -> float:
        """Bytes of a token's keys and values in bf16."""
        return 2.0 * self.layers * self.key_heads * self.head_dim * 2


@dataclass(frozen=True)
class Step:
    """The sizes of a rollout step."""

    num_prompts: int
    samples: int
    limit_tokens: int
    """The longest response."""
    epochs: int = 1
    groups_generated: float | None = None
    """None: num_prompts / keep_frac."""
    rescored: bool = True
    """pi_old comes from a forward pass of the trainer."""
    recomputes: float = 1.0
    """Forward passes added by activation checkpointing: 1 full, 0 none, about 0.5 selective."""
    critic: bool = False
    """A value model of the policy's size is scored and trained too (PPO)."""


@dataclass(frozen=True)
class Efficiency:
    """Achieved shares of the hardware's peak rates."""

    decode: float
    score: float
    train: float


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: float
    bound: str


def phases(
    shape: Shape, step: Step, work: Workload, hardware: Hardware, gpus: int, efficiency: Efficiency, state_gib: float
) -> list[Phase]:
    """The phases of a synchronous step, with engine and trainer taking turns on the same GPUs.

    Args:
        state_gib: memory of a GPU that the training state occupies during rollouts.
    """
    flops, bandwidth = hardware.tflops * 1e12, hardware.bandwidth_gb_s * 1e9
    mean = min(work.mean_response_tokens, step.limit_tokens)
    squares = mean * min(mean * math.exp(work.length_spread**2), step.limit_tokens)  # E[length^2], truncated log-normal
    groups = step.groups_generated or step.num_prompts / max(work.keep_frac, 1e-3)
    generated = groups * step.samples
    tp = min(work.engine_tensor_parallel, gpus)
    engines = gpus // tp
    free = hardware.memory_gb * 1e9 * work.engine_memory_frac * tp - state_gib * 2**30 * tp - 2 * shape.parameters
    context = work.prompt_tokens + squares / mean / 2  # mean over running sequences: long ones run longer
    batch = max(1.0, min(free / (context * shape.cache_bytes), generated / engines))

    def decode(sequences: float, tokens: float) -> tuple[float, str]:
        moved = (2 * shape.parameters + sequences * tokens * shape.cache_bytes) / (tp * bandwidth)
        computed = 2 * shape.parameters * sequences / (tp * flops)
        return max(moved, computed) / efficiency.decode, "memory bandwidth" if moved > computed else "arithmetic"

    second, bound = decode(batch, context)
    steady = generated * mean / (batch * engines) * second
    tail = step.limit_tokens * decode(1, step.limit_tokens / 2)[0]
    found = [Phase("decode", max(steady, tail), bound if steady > tail else "longest response")]
    found.append(
        Phase("prefill", groups * work.prompt_tokens * 2 * shape.body / (gpus * flops * efficiency.score), "arithmetic")
    )
    trained = step.num_prompts * step.samples
    tokens = trained * (work.prompt_tokens + mean)
    attention = shape.layers * shape.heads * shape.head_dim * trained * (squares + 2 * mean * work.prompt_tokens)
    forward = 2 * shape.body * tokens + 2 * shape.head * trained * mean + 2 * attention
    models = 2 if step.critic else 1
    if step.rescored or step.critic:
        scored = (int(step.rescored) + int(step.critic)) * forward
        found.append(Phase("old log-probs", scored / (gpus * flops * efficiency.score), "arithmetic"))
    backward = 4 * shape.body * tokens + 4 * shape.head * trained * mean + 5 * attention
    operations = models * step.epochs * ((1 + step.recomputes) * forward + backward)
    found.append(Phase("updates", operations / (gpus * flops * efficiency.train), "arithmetic"))
    found.append(Phase("weight sync", _sync_seconds(shape, hardware, gpus, tp), "network or memory"))
    return found


def _sync_seconds(shape: Shape, hardware: Hardware, gpus: int, tp: int) -> float:
    """Every engine GPU receives all layers in bf16, one by one, and keeps its part."""
    link = hardware.network_gb_s if gpus > 8 else hardware.nvlink_gb_s
    gathered = 2 * shape.parameters * (1 - 1 / gpus) / (link * 1e9)
    return max(gathered, 2 * shape.parameters / (tp * hardware.bandwidth_gb_s * 1e9))
