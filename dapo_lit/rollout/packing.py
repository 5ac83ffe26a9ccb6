"""The batch that is trained on, as flat tensors, and its micro-batches.

B completions; N response tokens over all of them, one after the other ("flat"). Sequences are right-padded: under a
causal mask no real token sees a pad, so no attention mask is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo_lit.rollout.records import Group


@dataclass
class MicroBatch:
    """What one forward pass needs. n response tokens of b completions."""

    input_ids: Tensor
    """[b, S], prompt and response, right-padded."""
    rows: Tensor
    """[n] row of the hidden state that predicts the token."""
    columns: Tensor
    """[n] its column: one before the token."""
    targets: Tensor
    """[n] the response tokens."""
    tokens: Tensor
    """[n] their places in the flat tensors of the batch."""
    completions: Tensor
    """[n] the completion each belongs to."""
    num_real_tokens: int
    """Without padding; b * S with it."""


@dataclass
class TokenBatch:
    """Completions as tensors; masks and advantages are per completion, log-probs per token."""

    sequences: list[Tensor]
    """B of [prompt + response]."""
    prompt_lengths: Tensor
    """[B]"""
    response_lengths: Tensor
    """[B]"""
    group_index: Tensor
    """[B] position of the completion's group in the batch."""
    advantages: Tensor
    """[B]"""
    carries_loss: Tensor
    """[B] bool; False: masked by overlong filtering. Metrics go over all response tokens, the loss over these."""
    rollout_logprobs: Tensor
    """[N] of the engine."""
    fresh: Tensor
    """[B] bool; False: sampled with older weights (carried over)."""

    @property
    def loss_tokens(self) -> Tensor:
        """[B] tokens of each completion that carry loss."""
        return self.response_lengths * self.carries_loss

    @property
    def completion_of_token(self) -> Tensor:
        """[N]"""
        return torch.repeat_interleave(torch.arange(len(self.sequences)), self.response_lengths)

    def micro_batches(self, completions: Sequence[int], budget_tokens: int, pad_id: int) -> Iterator[MicroBatch]:
        """Splits `completions` into micro-batches of at most `budget_tokens` tokens, padding included.

        Longest first, so that neighbours have similar lengths and padding is small. A sequence longer than the budget
        has a micro-batch of its own.
        """
        by_length = sorted(completions, key=lambda b: len(self.sequences[b]), reverse=True)
        start = 0
        while start < len(by_length):
            rows = max(1, budget_tokens // len(self.sequences[by_length[start]]))
            yield self._micro_batch(by_length[start : start + rows], pad_id)
            start += rows

    def _micro_batch(self, chosen: Sequence[int], pad_id: int) -> MicroBatch:
        sequences = [self.sequences[b] for b in chosen]
        input_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=pad_id)
        which = torch.tensor(chosen)
        lengths = self.response_lengths[which]
        rows = torch.repeat_interleave(torch.arange(len(chosen)), lengths)
        place = torch.arange(len(rows)) - (lengths.cumsum(0) - lengths)[rows]  # 0 .. length-1 within each response
        columns = self.prompt_lengths[which][rows] + place - 1
        starts = self.response_lengths.cumsum(0) - self.response_lengths
        return MicroBatch(
            input_ids=input_ids,
            rows=rows,
            columns=columns,
            targets=input_ids[rows, columns + 1],
            tokens=starts[which][rows] + place,
            completions=which[rows],
            num_real_tokens=sum(len(s) for s in sequences),
        )


def token_batch(groups: Sequence[Group], advantages: Tensor, carries_loss: Tensor, policy_version: int) -> TokenBatch:
    """Builds the tensors of `groups`, completions in order.

    Args:
        advantages: [P, G].
        carries_loss: [P, G] bool.
        policy_version: of the weights that train; samples of another version are marked as not fresh.
    """
    completions = [c for g in groups for c in g.completions]
    prompts = [g.prompt_ids for g in groups for _ in g.completions]
    return TokenBatch(
        sequences=[torch.tensor(p + c.sample.response_ids) for p, c in zip(prompts, completions, strict=True)],
        prompt_lengths=torch.tensor([len(p) for p in prompts]),
        response_lengths=torch.tensor([c.num_tokens for c in completions]),
        group_index=torch.repeat_interleave(
            torch.arange(len(groups)), torch.tensor([len(g.completions) for g in groups])
        ),
        advantages=advantages.flatten().float(),
        carries_loss=carries_loss.flatten(),
        rollout_logprobs=torch.tensor([p for c in completions for p in c.sample.rollout_logprobs], dtype=torch.float32),
        fresh=torch.tensor([c.sample.policy_version == policy_version for c in completions]),
    )
