"""Predicts the seconds of a rollout step by phase: bytes and operations of each phase over the hardware's rates.

With N parameters (N_b without embedding and head), L layers, attention width d_a, keys and values of kv bytes a token,
g GPUs of F operations and B bytes a second, sequences of s = prompt + response tokens:

- decode step of an engine over tp GPUs with M sequences of mean context c:
  t = max((2 N + M c kv) / (tp B), 2 N M / (tp F)) / efficiency, in bf16
- generation = max(tokens / (M engines) t, longest response t(M = 1)), and prefill 2 N_b tokens / (g F), once a group
- a forward pass: 2 N sum(s) + 2 L d_a sum(s^2) operations; backward twice the products and 2.5 times the attention;
  full checkpointing one forward more
- optimiser: 28 bytes a parameter; synchronisation: 2 N bytes through the network, or into the engine's memory

The efficiencies are fitted on one published run (FITTED) and predict two others. `assumed` names what the sources do
not state; the error of a prediction comes from the model and these assumptions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo_lit.config.commands import GPUS, Hardware, Workload


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


@dataclass(frozen=True)
class Anchor:
    """A published step time."""

    name: str
    source: str
    assumed: str
    shape: Shape
    step: Step
    work: Workload
    hardware: Hardware
    gpus: int
    published: dict[str, float]
    """Seconds of phases, or of the whole `step`."""


def _work(mean: float, keep: float, tp: int) -> Workload:
    return Workload(
        prompt_tokens=200, mean_response_tokens=mean, length_spread=0.8, keep_frac=keep,
        engine_tensor_parallel=tp, engine_memory_frac=0.85,
    )  # fmt: skip


QWEN_7B = Shape(28, 3584, 18944, 28, 4, 152064, tied=False)
QWEN_32B = Shape(64, 5120, 27648, 40, 8, 152064, tied=False)
QWEN3_32B = Shape(64, 5120, 25600, 64, 8, 151936, tied=False, head_width=128)

FITTED = Anchor(
    "verl, Qwen2.5-Math-7B, 128 H20",
    "verl docs/advance/fully_async.md, colocate sync: gen 177.85, old_log_prob 53.92, update_actor 113.81 s",
    "mean response 3,000 tokens, every group trained on, engines of 2 GPUs",
    QWEN_7B,
    Step(num_prompts=512, samples=16, limit_tokens=28672, groups_generated=512),
    _work(3000, 1.0, 2),
    GPUS["h20"],
    128,
    {"decode": 177.85, "old log-probs": 53.92, "updates": 113.81},
)
PREDICTED = (
    Anchor(
        "NeMo-RL v0.5, Qwen3-32B, 32 H100",
        "NeMo-RL performance summary: 376 s a step, 2,048 sequences of 3.25k tokens",
        "128 prompts x 16, limit 16,384, prompts of 200 tokens, engines of 4 GPUs",
        QWEN3_32B,
        Step(num_prompts=128, samples=16, limit_tokens=16384, groups_generated=128),
        _work(3050, 1.0, 4),
        Hardware("H100", 80, 989, 3350, 50, 450),
        32,
        {"step": 376.0},
    ),
    Anchor(
        "verl, Qwen2.5-32B (DAPO), 128 A800",
        "230 rollout steps in 5 days: 1,880 s a step",
        "mean response 5,000 tokens, 1,536 groups generated, engines of 4 GPUs",
        QWEN_32B,
        Step(num_prompts=512, samples=16, limit_tokens=20480, groups_generated=1536),
        _work(5000, 0.6, 4),
        GPUS["a800"],
        128,
        {"step": 1880.0},
    ),
)


def fitted() -> Efficiency:
    """Three efficiencies from three phases of one run: a phase's time is inversely proportional to its own."""
    found = seconds(FITTED, Efficiency(1.0, 1.0, 1.0))
    return Efficiency(*(found[name] / FITTED.published[name] for name in ("decode", "old log-probs", "updates")))


def seconds(anchor: Anchor, efficiency: Efficiency) -> dict[str, float]:
    """Predicted seconds by phase, and of the whole `step`."""
    state = 12 * anchor.shape.parameters / anchor.gpus / 2**30
    found: list[Phase] = phases(anchor.shape, anchor.step, anchor.work, anchor.hardware, anchor.gpus, efficiency, state)
    return {phase.name: phase.seconds for phase in found} | {"step": sum(phase.seconds for phase in found)}
