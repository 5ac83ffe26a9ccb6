"""One DAPO update, written a second time: plain PyTorch in float64, padded batches, eager attention, its own AdamW.

It imports nothing of dapo_lit and shares no code with it. Equations are those of the paper (arXiv 2503.14476). Padding
goes to the right and is masked; every completion has a row of its own, and nothing is packed, shared or chunked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


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


@dataclass(frozen=True)
class ValueModel:
    """PPO's critic, and what its advantages are made of."""

    backbone: nn.Module
    head: nn.Linear
    reference: nn.Module
    """The policy before training."""
    optimizer: "AdamW"
    lr: float
    beta: float
    gamma: float
    lam: float
    clip: float
    weight: float


class LowRank(nn.Module):
    """A matrix with an adapter: W x + b + scale B A x (arXiv 2106.09685), of which A and B are trained."""

    def __init__(self, matrix: nn.Linear, a: Tensor, b: Tensor, scale: float) -> None:
        super().__init__()
        self.weight, self.bias = (None if p is None else p.detach() for p in (matrix.weight, matrix.bias))
        self.a, self.b, self.scale = nn.Parameter(a.detach().clone()), nn.Parameter(b.detach().clone()), scale

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias) + self.scale * linear(linear(x, self.a), self.b)


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


def padded(responses: Sequence[Response]) -> dict[str, Tensor]:
    """[B, W] prompts with their responses, and which of the tokens are there."""
    ids = torch.zeros(len(responses), max(len(r.prompt) + len(r.tokens) for r in responses), dtype=torch.int64)
    there = torch.zeros_like(ids)
    for row, r in enumerate(responses):
        ids[row, : len(r.prompt) + len(r.tokens)] = torch.tensor(r.prompt + r.tokens)
        there[row, : len(r.prompt) + len(r.tokens)] = 1
    return {"input_ids": ids, "attention_mask": there}


def before_responses(scored: Tensor, responses: Sequence[Response]) -> tuple[Tensor, Tensor]:
    """[B, T] of [B, W]: what is at the position before each response token, and the mask of those that are there."""
    longest = max(len(r.tokens) for r in responses)
    mask = torch.tensor([[t < len(r.tokens) for t in range(longest)] for r in responses])
    rows = []
    for row, r in zip(scored, responses, strict=True):
        taken = row[len(r.prompt) - 1 : len(r.prompt) + len(r.tokens) - 1]
        rows.append(torch.cat([taken, taken.new_zeros(longest - len(taken))]))
    return torch.stack(rows), mask


def logprobs(model: nn.Module, responses: Sequence[Response], temperature: float) -> tuple[Tensor, Tensor]:
    """[B, T] log-probs of the response tokens at the sampling temperature, and the mask of those that are there."""
    inputs = padded(responses)
    scored = torch.log_softmax(model(**inputs).logits / temperature, dim=-1)
    following = inputs["input_ids"].roll(-1, dims=1).unsqueeze(-1)
    return before_responses(scored.gather(-1, following).squeeze(-1), responses)


def values(critic: ValueModel, responses: Sequence[Response]) -> Tensor:
    """[B, T] of the state before each response token."""
    hidden = critic.backbone(**padded(responses)).last_hidden_state
    return before_responses(critic.head(hidden).squeeze(-1), responses)[0]


def generalised(critic: ValueModel, outcomes: Tensor, old: Tensor, ref: Tensor, v: Tensor, mask: Tensor):
    """[B, T] advantages (arXiv 1506.02438, Eq. 16), mean 0 and variance 1 over the batch's tokens; and the returns."""
    a = torch.zeros_like(v)
    for row, length in enumerate(mask.sum(1).tolist()):
        following = value_after = 0.0
        for t in reversed(range(length)):
            reward = -critic.beta * (old - ref)[row, t] + (outcomes[row] if t == length - 1 else 0.0)
            following = reward + critic.gamma * value_after - v[row, t] + critic.gamma * critic.lam * following
            a[row, t], value_after = following, v[row, t]
    return (a - a[mask].mean()) / a[mask].std(), a + v


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
    """Eq. 8, 10 and 12 of a mini-batch: [B, T] log-probs, [B, 1 or T] advantages, [B] group and whether it counts."""
    difference = new - old
    if settings.loss == "gspo":  # the ratio of a sequence is the geometric mean of its tokens'
        difference = ((difference * mask).sum(1) / mask.sum(1)).unsqueeze(1).expand_as(new)
    ratio = difference.exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
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
    critic: ValueModel | None = None,
) -> tuple[list[float], list[float]]:
    """All updates of one rollout step; the loss and the gradient norm of each.

    epochs: for each epoch the responses of each of its mini-batches.
    """
    a = advantages(responses, settings).unsqueeze(1)
    with torch.no_grad():
        old, there = logprobs(model, responses, settings.temperature)
        if critic:
            ref, _ = logprobs(critic.reference, responses, settings.temperature)
            old_values = values(critic, responses)
            a, returns = generalised(critic, rewards(responses, settings), old, ref, old_values, there)
    group = torch.tensor([r.group for r in responses])
    keeps = torch.tensor([not (settings.overlong_filtering and r.truncated) for r in responses])
    losses, norms = [], []
    for minibatches in epochs:
        for chosen in minibatches:
            at = torch.tensor(chosen)
            if not keeps[at].any():
                continue
            new, mask = logprobs(model, [responses[i] for i in chosen], settings.temperature)
            width = new.shape[1]
            value = loss(new, old[at, :width], mask, a[at, :width], group[at], keeps[at], settings)
            value.backward()
            losses.append(float(value.detach()))
            norms.append(optimizer.update(settings, lr))
            if critic:
                v, before, wanted = values(critic, [responses[i] for i in chosen]), old_values[at], returns[at]
                before, wanted = before[:, :width], wanted[:, :width]
                near = before + (v - before).clamp(-critic.clip, critic.clip)
                error = torch.maximum((v - wanted) ** 2, (near - wanted) ** 2) / 2
                (critic.weight * error[mask].mean()).backward()
                critic.optimizer.update(settings, lr / settings.lr * critic.lr)
    return losses, norms
