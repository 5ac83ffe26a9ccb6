"""Mini-batches for the comparison: random ones, and ones made to break something."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dapo_lit.objective.advantages import group_advantages

MAX_RESPONSE_TOKENS = 48
GROUPS, SAMPLES = 4, 4
EXTREME_NATS = 30.0


@dataclass(frozen=True)
class Batch:
    """A padded mini-batch, B completions of T tokens at most."""

    name: str
    logprobs: Tensor
    """[B, T] nats under the policy being trained; the gradient is taken here."""
    old_logprobs: Tensor
    ref_logprobs: Tensor
    entropy: Tensor
    advantages: Tensor
    """[B], the same at each token of a completion."""
    lengths: Tensor
    """[B] response tokens."""
    carries_loss: Tensor
    """[B] bool, False where the completion is masked (overlong filtering)."""

    @property
    def group_index(self) -> Tensor:
        return torch.arange(len(self.lengths)) // SAMPLES

    @property
    def response_mask(self) -> Tensor:
        return torch.arange(self.logprobs.shape[1]) < self.lengths[:, None]

    @property
    def loss_mask(self) -> Tensor:
        return self.response_mask & self.carries_loss[:, None]

    @property
    def loss_tokens(self) -> Tensor:
        return self.loss_mask.sum(dim=1)

    @property
    def token_advantages(self) -> Tensor:
        return self.advantages[:, None].expand_as(self.logprobs)

    def to(self, dtype: torch.dtype) -> "Batch":
        names = ("logprobs", "old_logprobs", "ref_logprobs", "entropy", "advantages")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})


def random_batch(seed: int, *, longest: int = MAX_RESPONSE_TOKENS, spread: float = 0.3) -> Batch:
    """Lengths 1 to `longest`, log-ratios of `spread` nats: about a third of the tokens leaves [0.8, 1.28]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (GROUPS * SAMPLES, longest)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    logprobs = -2 * torch.rand(shape, generator=generator)
    rewards = torch.randint(0, 2, (GROUPS, SAMPLES), generator=generator) * 2.0 - 1
    rewards[:, 0], rewards[:, 1] = 1.0, -1.0  # mixed groups only
    penalties = 0.3 * torch.rand(GROUPS, SAMPLES, generator=generator)
    return Batch(
        name="random",
        logprobs=logprobs,
        old_logprobs=logprobs + normal(spread),
        ref_logprobs=logprobs + normal(spread),
        entropy=2 * torch.rand(shape, generator=generator),
        advantages=group_advantages(rewards - penalties).flatten(),
        lengths=torch.randint(1, longest + 1, (len(logprobs),), generator=generator),
        carries_loss=torch.ones(len(logprobs), dtype=torch.bool),
    )


RANDOM = [random_batch(seed) for seed in range(20)]
_BASE = random_batch(100)
_SIGNS = torch.tensor([1.0, -1.0]).repeat(_BASE.logprobs.numel() // 2).reshape(_BASE.logprobs.shape)


def _with_log_ratios(name: str, log_ratios: Tensor) -> Batch:
    """`_BASE` with these log-ratios to the old policy and to the reference."""
    other = _BASE.logprobs - log_ratios
    return replace(_BASE, name=name, old_logprobs=other, ref_logprobs=other)


ON_POLICY = _with_log_ratios("ratio exactly 1", torch.zeros_like(_BASE.logprobs))
ZERO_ADVANTAGES = replace(_BASE, name="all advantages 0", advantages=torch.zeros_like(_BASE.advantages))
ONE_TOKEN = replace(random_batch(101), name="one token each", lengths=torch.ones_like(_BASE.lengths))
SOME_MASKED = replace(
    random_batch(102), name="some completions masked", carries_loss=torch.arange(GROUPS * SAMPLES) % 3 > 0
)
ALL_MASKED = replace(_BASE, name="all masked", carries_loss=torch.zeros_like(_BASE.carries_loss))
AT_THE_BOUNDS = _with_log_ratios(
    "ratio at the bounds", torch.tensor([0.8, 1.2, 1.28, 3.0]).log().repeat(_BASE.logprobs.numel() // 4).view(16, -1)
)
UNEQUAL = replace(
    random_batch(103, longest=1024),
    name="lengths 1 and 1024",
    lengths=torch.tensor([1, 1024]).repeat(GROUPS * SAMPLES // 2),
)
MILD = [*RANDOM, ON_POLICY, ZERO_ADVANTAGES, ONE_TOKEN, AT_THE_BOUNDS, UNEQUAL]
"""Batches without a masked completion and without an extreme ratio."""
FAR = _with_log_ratios("log-ratios of +-5 nats", 5 * _SIGNS)
EXTREME = _with_log_ratios("log-ratios of +-30 nats at every token", EXTREME_NATS * _SIGNS)
SPIKE = _with_log_ratios(
    "one token in 16 at +-30 nats",
    torch.where(torch.arange(_BASE.logprobs.numel()).view(16, -1) % 16 < 1, EXTREME_NATS * _SIGNS, 0.1 * _SIGNS),
)
_HALF = torch.where(torch.arange(GROUPS * SAMPLES) % 4 < 2, 1.0, -1.0)[:, None].expand_as(_BASE.logprobs)
DRIFTED = _with_log_ratios("whole completions at +-30 nats", EXTREME_NATS * _HALF)
OVERFLOW = _with_log_ratios("log-ratios of +-100 nats", 100 * _SIGNS)
GARBAGE = replace(
    _BASE, name="NaN in the padding", logprobs=_BASE.logprobs.masked_fill(~_BASE.response_mask, torch.nan)
)

ADVERSARIAL = [ON_POLICY, ZERO_ADVANTAGES, ONE_TOKEN, AT_THE_BOUNDS, UNEQUAL, SOME_MASKED, ALL_MASKED]
ADVERSARIAL += [FAR, EXTREME, SPIKE, DRIFTED, OVERFLOW, GARBAGE]
LETTERS = {batch.name: letter for batch, letter in zip(ADVERSARIAL, "abcdefghijklm", strict=True)}
"""How the table names them."""


def described(batches: list[Batch]) -> str:
    """`20 random, a b`."""
    num_random = sum(batch.name == "random" for batch in batches)
    parts = [f"{num_random} random"] if num_random else []
    letters = " ".join(sorted(LETTERS[batch.name] for batch in batches if batch.name != "random"))
    return ", ".join([*parts, letters] if letters else parts)
