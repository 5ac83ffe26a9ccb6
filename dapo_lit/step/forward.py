"""Forward passes of policy, reference and critic over packed micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.policy.attention import hidden_states
from dapo_lit.policy.critic import Critic
from dapo_lit.policy.divergence import token_full_kl
from dapo_lit.policy.head import LossOfTokens, policy_loss, token_logprobs
from dapo_lit.policy.reference import Reference
from dapo_lit.policy.sharding import gathered_head, run
from dapo_lit.ranks import Ranks
from dapo_lit.step.balance import balance, balance_frac, cost_of
from dapo_lit.step.packing import MicroBatch, TokenBatch

SHARED_PROMPT_BELOW = 0.85
"""shared_prompt=auto: prompts are shared where that leaves less than this share of the tokens."""


@dataclass(frozen=True)
class PolicyForward:
    """The models of a step and how they are run. Micro-batches must be on `device`; results are [n], on it too."""

    policy: Any  # a PreTrainedModel, or its adapters around one
    reference: Reference | None
    """None: no KL term."""
    critic: Critic | None
    """None: no value model."""
    ranks: Ranks
    device: torch.device
    temperature: float
    """Log-probs and entropies are those of the sampling distribution."""
    entropy_gradient: bool
    """Whether a loss differentiates the entropy."""
    fp32_head: bool
    micro_batch_tokens: int
    """Most tokens in a micro-batch."""
    shared_prompt: bool | Literal["auto", "prefixes"]
    """Whether a group's prompt, or all that its completions begin with, is computed once per micro-batch."""

    def micro_batches(self, batch: TokenBatch, completions: Sequence[int]) -> list[tuple[MicroBatch, bool]]:
        """This rank's micro-batches of `completions`, the same number on every rank, and whether each counts.

        Every forward and backward pass of a sharded policy is a collective, so a rank with fewer micro-batches repeats
        the shortest completion, marked False: that one must weigh nothing and be measured nowhere.
        """
        shares = self.shared_prompt
        if shares == "auto":
            shares = batch.shared_prompt_ratio < SHARED_PROMPT_BELOW
        split = partial(batch.micro_batches, budget_tokens=self.micro_batch_tokens, shares_prompts=shares)
        if self.ranks.size == 1:
            return [(micro, True) for micro in split(completions)]
        own = balance(self._costs(batch, completions), self.ranks.size)[self.ranks.rank]
        micros = [(micro, True) for micro in split([completions[position] for position in own])]
        wanted = int(self.ranks.stack(torch.tensor(len(micros))).max())
        shortest = min(completions, key=lambda b: len(batch.sequences[b]))
        filler = next(iter(split([shortest])))
        return micros + [(filler, False)] * (wanted - len(micros))

    def balance(self, batch: TokenBatch, completions: Sequence[int]) -> float:
        """`perf/balance` of `completions`: mean over maximum of the ranks' costs; 1: no rank waits for another."""
        costs = self._costs(batch, completions)
        return balance_frac(costs, balance(costs, self.ranks.size))

    def _costs(self, batch: TokenBatch, completions: Sequence[int]) -> list[float]:
        cost = cost_of(self.policy.config)
        return [cost(len(batch.sequences[b])) for b in completions]

    def logprobs(self, micro: MicroBatch, model: PreTrainedModel | None = None) -> tuple[Tensor, Tensor]:
        """Log-probs (with gradient) and entropies of the response tokens, under the policy unless `model` is given."""
        return run(
            self.policy if model is None else model,
            token_logprobs,
            micro.input_ids,
            micro.packed,
            micro.rows,
            micro.targets,
            temperature=self.temperature,
            entropy_gradient=self.entropy_gradient,
            fp32=self.fp32_head,
        )

    def token_loss(self, micro: MicroBatch, loss: LossOfTokens) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of a loss over the response tokens, with gradient; log-probs and entropies without."""
        return run(
            self.policy,
            policy_loss,
            micro.input_ids,
            micro.packed,
            micro.rows,
            micro.targets,
            loss,
            temperature=self.temperature,
            fp32=self.fp32_head,
        )

    def values(self, micro: MicroBatch, *, head_only: bool = False) -> Tensor:
        """The critic's values of the states before the response tokens, with gradient.

        head_only: a backbone shared with the policy gets no gradient.
        """
        assert self.critic is not None
        shares = self.critic.backbone is None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (shares and head_only)):
            hidden = _hidden_states(self.policy if shares else self.critic.backbone, micro)
        return self.critic(hidden)

    def full_kl(self, micro: MicroBatch) -> Tensor:
        """Exact divergence from the reference at each response token, with gradient."""
        assert self.reference is not None
        with self.reference.on(self.device) as reference, torch.no_grad():
            hidden = _hidden_states(reference, micro)
        return run(
            self.policy,
            token_full_kl,
            micro.input_ids,
            micro.packed,
            micro.rows,
            ref_hidden=hidden,
            ref_head=None if self.reference.is_policy else gathered_head(self.reference.model),
            temperature=self.temperature,
        )


def _hidden_states(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """[n, hidden] before each response token."""
    return run(model, hidden_states, micro.input_ids, micro.packed, micro.rows)
