"""The batch that is trained on, as flat tensors, and its micro-batches.

B completions; N response tokens over all of them, one after the other ("flat"). The sequences of a micro-batch lie
one after the other too: nothing is padded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo_lit.policy.attention import Layout, layout
from dapo_lit.rollout.balance import first_fit
from dapo_lit.rollout.records import Group


@dataclass
class MicroBatch:
    """What one forward pass needs: T tokens of b sequences, one after the other; n response tokens.

    The last token of a sequence predicts nothing and is left out.
    """

    input_ids: Tensor
    """[T]"""
    lengths: list[int]
    """b; they sum to T."""
    rows: Tensor
    """[n] the packed token whose hidden state predicts the response token: the one before it."""
    targets: Tensor
    """[n] the response tokens."""
    tokens: Tensor
    """[n] their places in the flat tensors of the batch."""
    completions: Tensor
    """[n] the completion each belongs to."""

    def layout(self, device: torch.device | str) -> Layout:
        """For the attention; made when it is needed."""
        return layout(self.lengths, device)


@dataclass
class TokenBatch:
    """Completions as tensors; masks and rewards are per completion, log-probs per token."""

    sequences: list[Tensor]
    """B of [prompt + response]."""
    prompt_lengths: Tensor
    """[B]"""
    response_lengths: Tensor
    """[B]"""
    group_index: Tensor
    """[B] position of the completion's group in the batch."""
    rewards: Tensor
    """[B] float64, after shaping."""
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

    def micro_batches(self, completions: Sequence[int], budget_tokens: int) -> Iterator[MicroBatch]:
        """Splits `completions` into micro-batches of at most `budget_tokens` tokens, none of them a pad.

        A sequence longer than the budget has a micro-batch of its own.
        """
        lengths = [len(self.sequences[b]) - 1 for b in completions]
        for chosen in first_fit(lengths, budget_tokens):
            yield self._micro_batch([completions[i] for i in chosen])

    def _micro_batch(self, chosen: Sequence[int]) -> MicroBatch:
        which = torch.tensor(chosen)
        lengths = self.response_lengths[which]
        packed_lengths = self.prompt_lengths[which] + lengths - 1
        member = torch.repeat_interleave(torch.arange(len(chosen)), lengths)
        place = torch.arange(len(member)) - (lengths.cumsum(0) - lengths)[member]  # 0 .. length-1 within each response
        packed_starts = packed_lengths.cumsum(0) - packed_lengths
        starts = self.response_lengths.cumsum(0) - self.response_lengths
        return MicroBatch(
            input_ids=torch.cat([self.sequences[b][:-1] for b in chosen]),
            lengths=packed_lengths.tolist(),
            rows=(packed_starts + self.prompt_lengths[which] - 1)[member] + place,
            targets=torch.cat([self.sequences[b][int(self.prompt_lengths[b]) :] for b in chosen]),
            tokens=starts[which][member] + place,
            completions=which[member],
        )


def token_batch(groups: Sequence[Group], carries_loss: Tensor, policy_version: int) -> TokenBatch:
    """Builds the tensors of `groups`, completions in order.

    Args:
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
        rewards=torch.tensor([c.reward_shaped for c in completions], dtype=torch.float64),
        carries_loss=carries_loss.flatten(),
        rollout_logprobs=torch.tensor([p for c in completions for p in c.sample.rollout_logprobs], dtype=torch.float32),
        fresh=torch.tensor([c.sample.policy_version == policy_version for c in completions]),
    )
