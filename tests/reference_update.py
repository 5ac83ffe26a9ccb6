"""One DAPO update, written a second time: plain PyTorch in float64, padded batches, eager attention, its own AdamW.

It imports nothing of dapo_lit and shares no code with it. Equations are those of the paper (arXiv 2503.14476). Padding
goes to the right and is masked; every completion has a row of its own, and nothing is packed, shared or chunked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Response:
    prompt: list[int]
    tokens: list[int]
    """With the EOS token where one ended the response."""
    group: int
    correct: bool
    truncated: bool


@dataclass(frozen=True)
class Settings:
    clip_low: float
    clip_high: float
    clip_dual: float | None
    denominator: str
    """minibatch, group, sample or constant."""
    soft_punishment: bool
    overlong_filtering: bool
    hard_punishment: bool
    limit: int
    cache: int
    temperature: float
    lr: float
    betas: tuple[float, float]
    eps: float
    grad_clip: float
    loss: str = "clip"
    """clip, or gspo (arXiv 2507.18071, Eq. 5 to 7)."""
    scale_by_std: bool = True


class AdamW:
    """Without weight decay (arXiv 1412.6980, Algorithm 1)."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.updates = 0

    @torch.no_grad()
    def update(self, settings: Settings, lr: float) -> float:
        """Clips the gradient by its norm and moves the weights; the norm before clipping."""
        gradients = [p.grad for p in self.parameters]
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        scale = min(1.0, settings.grad_clip / (float(norm) + 1e-6))
        self.updates += 1
        one, two = settings.betas
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            m.mul_(one).add_(g * scale, alpha=1 - one)
            v.mul_(two).add_((g * scale) ** 2, alpha=1 - two)
            mean, variance = m / (1 - one**self.updates), v / (1 - two**self.updates)
            p.sub_(lr * mean / (variance.sqrt() + settings.eps))
            p.grad = None
        return float(norm)


def logprobs(model: torch.nn.Module, responses: Sequence[Response], temperature: float) -> tuple[Tensor, Tensor]:
    """[B, T] log-probs of the response tokens at the sampling temperature, and the mask of those that are there."""
    width = max(len(r.prompt) + len(r.tokens) for r in responses)
    longest = max(len(r.tokens) for r in responses)
    ids = torch.zeros(len(responses), width, dtype=torch.int64)
    there = torch.zeros(len(responses), width, dtype=torch.int64)
    for row, r in enumerate(responses):
        ids[row, : len(r.prompt) + len(r.tokens)] = torch.tensor(r.prompt + r.tokens)
        there[row, : len(r.prompt) + len(r.tokens)] = 1
    logits = model(input_ids=ids, attention_mask=there).logits / temperature
    scored = torch.log_softmax(logits, dim=-1)
    found = torch.zeros(len(responses), longest, dtype=torch.float64)
    mask = torch.zeros(len(responses), longest, dtype=torch.bool)
    rows = []
    for row, r in enumerate(responses):
        at = torch.arange(len(r.prompt) - 1, len(r.prompt) + len(r.tokens) - 1)
        taken = scored[row, at, torch.tensor(r.tokens)]
        rows.append(torch.cat([taken, found[row, len(r.tokens) :]]))
        mask[row, : len(r.tokens)] = True
    return torch.stack(rows), mask


def rewards(responses: Sequence[Response], settings: Settings) -> Tensor:
    """[B] Eq. 7, and Eq. 13 or the hard punishment of section 3.4."""
    values = []
    for r in responses:
        value = 1.0 if r.correct else -1.0
        length, expected = len(r.tokens), settings.limit - settings.cache
        if settings.soft_punishment:
            if length > settings.limit:
                value -= 1.0
            elif length > expected:
                value += (expected - length) / settings.cache
        elif settings.hard_punishment and r.truncated:
            value = -1.0
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)


def advantages(responses: Sequence[Response], settings: Settings) -> Tensor:
    """[B] Eq. 9, with the unbiased standard deviation and 1e-6 of the authors' code."""
    shaped = rewards(responses, settings)
    groups = torch.tensor([r.group for r in responses])
    found = torch.zeros_like(shaped)
    for group in groups.unique():
        mine = groups == group
        centred = shaped[mine] - shaped[mine].mean()
        found[mine] = centred / (shaped[mine].std() + 1e-6) if settings.scale_by_std else centred
        if shaped[mine].max() - shaped[mine].min() < 1e-6:
            found[mine] = 0.0
    return found


def loss(new: Tensor, old: Tensor, mask: Tensor, a: Tensor, group: Tensor, keeps: Tensor, settings: Settings) -> Tensor:
    """Eq. 8, 10 and 12 of a mini-batch: [B, T] log-probs, [B] advantages, groups and whether a response counts."""
    difference = new - old
    if settings.loss == "gspo":  # the ratio of a sequence is the geometric mean of its tokens'
        difference = ((difference * mask).sum(1) / mask.sum(1)).unsqueeze(1).expand_as(new)
    ratio = difference.exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    a = a.unsqueeze(1)
    token_loss = -torch.minimum(ratio * a, clipped * a)
    if settings.clip_dual is not None:
        token_loss = torch.where(a < 0, torch.minimum(token_loss, -settings.clip_dual * a), token_loss)
    counted = mask & keeps.unsqueeze(1)
    token_loss, lengths = torch.where(counted, token_loss, 0.0), counted.sum(1)
    if settings.denominator == "minibatch":
        return token_loss.sum() / counted.sum()
    if settings.denominator == "sample":
        return (token_loss.sum(1)[keeps] / lengths[keeps]).mean()
    if settings.denominator == "constant":
        return token_loss.sum() / (keeps.sum() * settings.limit)
    assert settings.denominator == "group"
    of_groups = [token_loss[group == g].sum() / counted[group == g].sum() for g in group[keeps].unique()]
    return torch.stack(of_groups).mean()


def train_step(
    model: torch.nn.Module,
    optimizer: AdamW,
    responses: Sequence[Response],
    epochs: Sequence[Sequence[Sequence[int]]],
    settings: Settings,
    lr: float,
) -> tuple[list[float], list[float]]:
    """All updates of one rollout step; the loss and the gradient norm of each.

    epochs: for each epoch the responses of each of its mini-batches.
    """
    with torch.no_grad():
        old, _ = logprobs(model, responses, settings.temperature)
    a = advantages(responses, settings)
    group = torch.tensor([r.group for r in responses])
    keeps = torch.tensor([not (settings.overlong_filtering and r.truncated) for r in responses])
    losses, norms = [], []
    for minibatches in epochs:
        for chosen in minibatches:
            at = torch.tensor(chosen)
            if not keeps[at].any():
                continue
            new, mask = logprobs(model, [responses[i] for i in chosen], settings.temperature)
            value = loss(new, old[at, : new.shape[1]], mask, a[at], group[at], keeps[at], settings)
            value.backward()
            losses.append(float(value.detach()))
            norms.append(optimizer.update(settings, lr))
    return losses, norms
