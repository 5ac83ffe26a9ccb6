"""Supervised training of a causal language model on responses, for base policies and docs/examples/warm_up.py.

AdamW in one process. The loss is the mean over a batch's response tokens, EOS included; prompts, and what an
environment says between two turns, are seen and not learned. Micro-batches of similar length share the batch's
denominator, so padding is small and the gradient is that of the random batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.policy.head import Head
from dapo_lit.policy.wrap import run
from dapo_lit.seeds import named_generator


class Example(NamedTuple):
    prompt: Sequence[int]
    response: Sequence[int]
    """Ends with its EOS token unless it is cut off."""
    observed: Sequence[int] = ()
    """Places in the response of an environment's tokens, which have no loss: a policy must not learn to write them."""

    @property
    def num_learned(self) -> int:
        return len(self.response) - len(self.observed)


_NO_LABEL = -100
WARMUP = 0.05
"""Share of the updates."""


def train_supervised(
    model: PreTrainedModel,
    rows: Sequence[Example],
    *,
    updates: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    micro_batches: int = 3,
    report: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains `model` in place and returns the loss (nats a response token) of every update.

    The learning rate rises linearly over the first WARMUP of the updates and then falls linearly to zero. Rows are
    drawn without replacement and reshuffled in every epoch.

    report: called after each update with their number so far and its loss.

    Raises ValueError if there are no rows or a row has no response.
    """
    if not rows or not all(row.num_learned for row in rows):
        raise ValueError("supervised training needs rows, each with at least one response token")
    parameters = [p for p in model.parameters() if p.requires_grad]
    # Settings of small language models; part of no config, as base policies are made once and packed.
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    warmup = max(1, round(WARMUP * updates))
    batches = random_batches(rows, batch_size, seed)
    losses: list[float] = []
    was_training = model.training
    model.train()
    for update in range(updates):
        rate = learning_rate * min((update + 1) / warmup, (updates - update) / max(1, updates - warmup))
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses.append(accumulate_gradient(model, next(batches), micro_batches))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if report is not None:
            report(update + 1, losses[-1])
    model.train(was_training)
    return losses


def accumulate_gradient(model: PreTrainedModel, batch: Sequence[Example], micro_batches: int) -> float:
    """Adds the gradient of the batch's loss to the parameters; returns that loss."""
    # Of the whole batch, before it is split: the same denominator for every micro-batch.
    num_tokens = sum(row.num_learned for row in batch)
    # Sorted within the batch: less padding, and the same sum.
    by_length = sorted(batch, key=lambda row: len(row.prompt) + len(row.response))
    size = -(-len(by_length) // micro_batches)
    total = 0.0
    for start in range(0, len(by_length), size):
        ids, labels = _pad(by_length[start : start + size], model.device)
        loss = run(model, response_nll, ids, labels) / num_tokens
        loss.backward()
        total += loss.item()
    return total


def response_nll(
    model: PreTrainedModel, ids: Int64[Tensor, "B width"], labels: Int64[Tensor, "B width"]
) -> Float[Tensor, ""]:
    """Sum over the labelled tokens of -log p(token | preceding tokens), in nats.

    A token with label -100 does not count. Rows are padded on the right, so causal attention needs no mask.
    """
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    counted = targets != _NO_LABEL
    # Only counted positions go through the head: with a large vocabulary the logits are the largest tensor.
    logits = Head.of(model).logits(hidden[counted])
    return F.cross_entropy(logits, targets[counted], reduction="sum")


def _pad(rows: Sequence[Example], device: torch.device) -> tuple[Int64[Tensor, "B width"], Int64[Tensor, "B width"]]:
    """Ids and labels; padded with id 0, which affects neither loss nor attention of a counted token."""
    longest = max(len(row.prompt) + len(row.response) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long, device="cpu")
    labels = torch.full((len(rows), longest), _NO_LABEL, device="cpu")
    for index, (prompt, response, observed) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[index, :end] = torch.tensor([*prompt, *response], device="cpu")
        # Loss on the response only: prompts are given in training too.
        labels[index, len(prompt) : end] = torch.tensor(response, device="cpu")
        if observed:  # given as well
            labels[index, [len(prompt) + place for place in observed]] = _NO_LABEL
    return ids.to(device), labels.to(device)


def random_batches(rows: Sequence[Example], batch_size: int, seed: int) -> Iterator[list[Example]]:
    """Endless batches; a batch may span two epochs."""
    rng = named_generator("supervised", seed)
    order: list[int] = []
    while True:
        while len(order) < batch_size:
            # In front, so that pop takes what is left of the old epoch first.
            order = rng.sample(range(len(rows)), len(rows)) + order
        yield [rows[order.pop()] for _ in range(batch_size)]
