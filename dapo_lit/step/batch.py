"""The batch that is trained on, as flat tensors, and its mini-batches and micro-batches.

B completions with N response tokens in all, one completion after the other ("flat"). The sequences of a micro-batch
follow each other too: nothing is padded.

Of an episode with an environment (docs/turns.md), the response tokens are the policy's. What the environment answered
is part of the sequence, so the policy sees it, and of nothing else: no [N] tensor has a place for it, and so no loss,
statistic or denominator.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from dapo_lit.policy.attention import Layout, layout, paths
from dapo_lit.rollout.records import CollectedStep, Completion, Group
from dapo_lit.step.balance import first_fit

Shared = Literal["prefixes", "branches"]
"""What completions of a group share in a forward pass beyond their prompt; see trainer.shared_prompt."""


@dataclass
class MicroBatch:
    """The input of one forward pass: T tokens in segments, one after the other, with n response tokens.

    A segment is a prompt with its response, a prompt that several responses share, one of those responses, or what
    distinguishes a response from another. The last token of a response predicts nothing and is left out.
    """

    input_ids: Int64[Tensor, "T"]
    lengths: list[int]
    """Lengths of the segments; they sum to T."""
    prompts: list[int] | None
    """The segment whose sequence each segment continues, or -1; None: nothing is shared."""
    continued: list[int] | None
    """After how many tokens of that sequence; None: after all."""
    rows: Int64[Tensor, "n"]
    """Position in `input_ids` of the token before the response token, whose hidden state predicts it."""
    targets: Int64[Tensor, "n"]
    """The response tokens."""
    tokens: Int64[Tensor, "n"]
    """Their positions in the batch's [N] tensors."""
    completions: Int64[Tensor, "n"]
    """The completion each belongs to."""
    branches: bool = False
    """Where segments share tokens, attention is computed for their own only; see `layout`."""

    @cached_property
    def packed(self) -> Layout:
        """The layout of the segments, for the attention."""
        device = self.input_ids.device
        return layout(self.lengths, self.prompts, self.continued, device, branches=self.branches)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same with its tensors on another device."""
        tensors = {name: getattr(self, name) for name in ("input_ids", "rows", "targets", "tokens", "completions")}
        return replace(self, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})


@dataclass
class TokenBatch:
    """Completions as tensors on the CPU: B completions with N response tokens, one completion after the other."""

    sequences: list[Tensor]
    """B of [prompt + response], in an episode with the observations among the response tokens."""
    prompt_lengths: Int64[Tensor, "B"]
    response_lengths: Int64[Tensor, "B"]
    group_index: Int64[Tensor, "B"]
    """Position of the completion's group in the batch."""
    rewards: Float64[Tensor, "B"]
    """After shaping."""
    loss_mask: Bool[Tensor, "N"]
    """False: the token carries no loss. Metrics go over all response tokens, the loss over these."""
    rollout_logprobs: Float32[Tensor, "N"]
    """Under the engine."""
    fresh: Bool[Tensor, "N"]
    """False: the token was sampled by older weights (carried over)."""
    places: list[NDArray[np.int64]] | None = None
    """B of [response tokens]: where in its sequence each of them is. None: directly after the prompt, as all are where
    nothing has turns."""
    turn_rewards: Float64[Tensor, "N"] | None = None
    """At the last token of every turn but a completion's last: the environment's reward for it, a part of `rewards`.
    None: there is none."""

    # Once a step, not once an update: N is 41 million in a step of the paper's size.
    @cached_property
    def loss_tokens(self) -> Int64[Tensor, "B"]:
        """Number of tokens of each completion that carry loss."""
        return torch.zeros_like(self.response_lengths).index_add_(0, self.completion_of_token, self.loss_mask.long())

    @cached_property
    def completion_of_token(self) -> Int64[Tensor, "N"]:
        return torch.repeat_interleave(torch.arange(len(self.sequences), device="cpu"), self.response_lengths)

    @cached_property
    def shared_prompt_ratio(self) -> float:
        """Tokens with each group's prompt computed once, over tokens with a prompt for each completion."""
        of_group = dict(zip(self.group_index.tolist(), self.prompt_lengths.tolist(), strict=True))
        responses = sum(self._lengths[1]) - len(self.sequences)
        return (sum(of_group.values()) + responses) / (int(self.prompt_lengths.sum()) + responses)

    def minibatches(self, num_groups: int, seed: int) -> Iterator[list[int]]:
        """The completions of each mini-batch, whole groups in an order shuffled by `seed`.

        As many mini-batches as `num_groups` groups each ask for. Where the batch is smaller than planned they share its
        groups evenly: 9 groups by 8 make updates of 5 and 4 groups, not of 8 and 1.
        """
        # Groups and not completions: advantages compare within a group, and one that is cut in two meets two policies.
        order = torch.randperm(
            int(self.group_index.max()) + 1, generator=torch.Generator(device="cpu").manual_seed(seed), device="cpu"
        )
        for chosen in order.tensor_split(math.ceil(len(order) / num_groups)):
            yield torch.isin(self.group_index, chosen).nonzero().flatten().tolist()

    def micro_batches(
        self,
        completions: Sequence[int],
        budget_tokens: int,
        *,
        shares_prompts: bool | Shared = False,
    ) -> Iterator[MicroBatch]:
        """Splits `completions` into micro-batches of at most `budget_tokens` tokens, without padding.

        A sequence longer than the budget has a micro-batch of its own.

        shares_prompts: compute the prompt of a group once for all its completions in a micro-batch; "prefixes":
            whatever tokens completions of a group begin with; "branches": and the attention of shared tokens, too.
        """
        units = self._units(completions, budget_tokens) if shares_prompts else [[b] for b in completions]
        for chosen in first_fit([self._num_tokens(unit) for unit in units], budget_tokens):
            micro = self._micro_batch([units[i] for i in chosen], shares_prompts in ("prefixes", "branches"))
            yield replace(micro, branches=shares_prompts == "branches")

    def _units(self, completions: Sequence[int], budget_tokens: int) -> list[list[int]]:
        """Completions of one group, as many as the budget holds with their prompt."""
        units: list[list[int]] = []
        # A shared prompt counts once in the budget, so completions are gathered into units before they are packed.
        groups, (_, responses) = self.group_index.tolist(), self._lengths
        group, size = -1, 0
        for b in sorted(completions, key=lambda b: groups[b]):
            added = responses[b] - 1
            if groups[b] == group and size + added <= budget_tokens:
                # Same prompt, and it fits: it costs what follows only.
                units[-1].append(b)
                size += added
            else:
                units.append([b])
                group, size = groups[b], self._num_tokens([b])
        return units

    @cached_property
    def _lengths(self) -> tuple[list[int], list[int]]:
        """Lengths of prompts and of what follows them, as lists: reading a tensor number by number is slow."""
        prompts = self.prompt_lengths.tolist()
        return prompts, [len(ids) - prompt for ids, prompt in zip(self.sequences, prompts, strict=True)]

    @cached_property
    def _before(self) -> list[Any]:
        """For each completion the places before its response tokens, as an index of a sequence."""
        if self.places is not None:
            return [places - 1 for places in self.places]
        # A slice where they follow each other: it copies nothing.
        return [slice(p - 1, p - 1 + r) for p, r in zip(*self._lengths, strict=True)]

    def _num_tokens(self, unit: Sequence[int]) -> int:
        """Tokens of completions that share their prompt."""
        prompts, responses = self._lengths
        return prompts[unit[0]] + sum(responses[b] - 1 for b in unit)

    def _micro_batch(self, units: Sequence[Sequence[int]], prefixes: bool) -> MicroBatch:
        """Packs units, each of which is a prompt and the responses to it without their last tokens."""
        # Segments instead of padded rows: with responses of 20 to 20,000 tokens most of a padded batch would be
        # padding.
        segments = _Segments()
        # Completions, and a segment whose sequence begins with their tokens.
        held: list[tuple[int, int]] = []
        for unit in units:
            prompt = self._lengths[0][unit[0]]
            if prefixes:
                held += segments.tree({b: self.sequences[b][:-1] for b in unit})
            elif len(unit) == 1:
                held.append((unit[0], segments.add(self.sequences[unit[0]][:-1])))
            else:
                root = segments.add(self.sequences[unit[0]][:prompt])
                responses = [(b, self.sequences[b][prompt:-1]) for b in unit]
                held += [(b, segments.add(r, root, prompt) if len(r) else root) for b, r in responses]
        sequences = paths(segments.lengths, segments.parents, segments.continued)
        # The position that predicts a token is the one before it; for the first response token that is the prompt's
        # last.
        rows = [sequences[segment][self._before[b]] for b, segment in held]
        chosen = torch.tensor([b for b, _ in held], device="cpu")
        num_tokens = self.response_lengths[chosen]
        member = torch.repeat_interleave(torch.arange(len(chosen), device="cpu"), num_tokens)
        first = num_tokens.cumsum(0) - num_tokens
        # The place of each token within its response: 0, 1, ...
        place = torch.arange(len(member), device="cpu") - first[member]
        starts = self.response_lengths.cumsum(0) - self.response_lengths
        shares = max(segments.parents) >= 0
        return MicroBatch(
            input_ids=torch.cat(segments.ids),
            lengths=segments.lengths,
            prompts=segments.parents if shares else None,
            continued=segments.continued if shares and prefixes else None,
            rows=torch.from_numpy(np.concatenate(rows)),
            # The last token is a target but never an input, as nothing is predicted from it.
            targets=torch.cat([self.sequences[b][1:][self._before[b]] for b, _ in held]),
            tokens=starts[chosen][member] + place,
            completions=chosen[member],
        )


@dataclass
class _Segments:
    """The segments of a micro-batch as they are packed."""

    ids: list[Tensor] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)

    def add(self, ids: Tensor, parent: int = -1, continued: int = 0) -> int:
        """Packs tokens that continue the first ones of `parent`'s sequence; returns the segment's index."""
        self.ids.append(ids)
        self.lengths.append(len(ids))
        self.parents.append(parent)
        self.continued.append(continued)
        return len(self.lengths) - 1

    def tree(self, sequences: Mapping[int, Tensor]) -> list[tuple[int, int]]:
        """Packs each prefix that sequences share once; returns (key, segment whose sequence begins with theirs)."""
        found: list[tuple[int, int]] = []
        previous, segment = np.empty(0, np.int64), -1
        # In sorted order, none of the earlier sequences shares more tokens with the next than the last one.
        for key, ids in sorted(((key, ids.tolist()) for key, ids in sequences.items()), key=lambda pair: pair[1]):
            shorter = min(len(previous), len(ids))
            differs = np.flatnonzero(previous[:shorter] != np.array(ids[:shorter]))
            shared = int(differs[0]) if len(differs) else shorter
            if shared < len(ids):
                segment = self.add(sequences[key][shared:], segment if shared else -1, shared)
                previous = np.array(ids)
            found.append((key, segment))
        return found


def token_batch(groups: Sequence[Group], loss_mask: Bool[Tensor, "N"], policy_version: int) -> TokenBatch:
    """Builds the tensors of `groups`, completions in order.

    policy_version: of the weights that train; tokens of another version are marked as not fresh.
    """
    # Without `missing`: a completion without a verdict has no reward, and a made-up one would move the whole group's
    # advantages.
    completions = [c for g in groups for c in g.completions]
    prompts = [g.prompt_ids for g in groups for _ in g.completions]
    pairs = [(prompt, c.sample.row_ids) for prompt, c in zip(prompts, completions, strict=True)]
    flat = torch.from_numpy(np.concatenate([ids for pair in pairs for ids in pair], dtype=np.int64))
    prompt_lengths, row_lengths = torch.tensor([[len(p), len(r)] for p, r in pairs], device="cpu").unbind(1)
    response_lengths = torch.tensor([c.num_tokens for c in completions], device="cpu")
    has_turns = any(len(c.sample.observations) for c in completions)
    versions = np.array([run for c in completions for run in c.sample.versions])
    return TokenBatch(
        sequences=list(flat.split((prompt_lengths + row_lengths).tolist())),
        prompt_lengths=prompt_lengths.contiguous(),
        response_lengths=response_lengths,
        group_index=torch.repeat_interleave(
            torch.arange(len(groups), device="cpu"), torch.tensor([len(g.completions) for g in groups], device="cpu")
        ),
        # Float64, as they were computed: rounding could make two rewards of a group equal.
        rewards=torch.tensor([c.reward_shaped for c in completions], dtype=torch.float64, device="cpu"),
        loss_mask=loss_mask,
        rollout_logprobs=torch.from_numpy(np.concatenate([c.sample.rollout_logprobs for c in completions])),
        # By runs of versions, as a response may be sampled by several: it was interrupted and continued.
        fresh=torch.from_numpy(np.repeat(versions[:, 0] == policy_version, versions[:, 1])),
        places=[
            len(prompt) + c.sample.observations.row_places(c.num_tokens)
            for prompt, c in zip(prompts, completions, strict=True)
        ]
        if has_turns
        else None,
        turn_rewards=_turn_rewards(completions),
    )


def _turn_rewards(completions: Sequence[Completion]) -> Float64[Tensor, "N"] | None:
    if not any(any(c.sample.turn_rewards) for c in completions):
        return None
    found = []
    for c in completions:
        found.append(np.zeros(c.num_tokens))
        # The last turn's is where the outcome is: it needs no place.
        ends = np.unique(c.sample.observations.places) - 1
        given = c.sample.turn_rewards[: len(ends)]
        found[-1][ends[: len(given)]] = given
    return torch.from_numpy(np.concatenate(found))


@dataclass
class RolloutStep:
    collected: CollectedStep
    tokens: TokenBatch | None
    """None: no group to learn from."""
    sync_s: float
    started: float
    """time.perf_counter() when the step began."""
    metrics: dict[str, Any]
    """Metrics of sampling, under the keys of docs/metrics.md."""
    waited_s: float | None = None
    """Seconds that the training thread waited for a step that was sampled ahead; None: it sampled this one itself."""

    @property
    def step(self) -> int:
        return self.collected.step

    @property
    def policy_version(self) -> int:
        return self.collected.policy_version
