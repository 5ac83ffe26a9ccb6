"""Forward passes of policy, reference and critic, and the trainer's view of a batch before its updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ablations.screen import with_status
from dapo_lit.config import Config
from dapo_lit.objective.diagnostics import correction_statistics, mismatch_statistics
from dapo_lit.objective.tokens import NOTHING, Statistics, merge
from dapo_lit.policy.attention import packed_hidden
from dapo_lit.policy.head import token_logprobs
from dapo_lit.policy.reference import Critic, Reference
from dapo_lit.policy.wrap import run
from dapo_lit.ranks import Ranks
from dapo_lit.seeds import minibatch_seed
from dapo_lit.step.balance import balance, balance_frac, cost_of
from dapo_lit.step.batch import MicroBatch, Shared, TokenBatch
from dapo_lit.step.loss import Objective, TokenData, loss_with_gradient

SHARED_PROMPT_BELOW = 0.85
"""shared_prompt=auto: prompts are shared where that leaves less than this share of the tokens."""


@dataclass(frozen=True)
class PolicyForward:
    """The models of a step and how they are run. Micro-batches must be on `device`; results are on it too."""

    policy: Any  # a PreTrainedModel, or its adapters around one
    reference: Reference | None
    """None: no KL term."""
    critic: Critic | None
    """None: no value model."""
    ranks: Ranks
    device: torch.device
    temperature: float
    """Log-probs and entropies are those of the sampling distribution."""
    fp32_head: bool
    compiles: bool
    """The arithmetic of the head in the updates, like the layers, is compiled."""
    micro_batch_tokens: int
    """Most tokens in a micro-batch."""
    shared_prompt: bool | Literal["auto"] | Shared
    """A group's prompt, or all that its completions begin with, is computed once per micro-batch."""

    def micro_batches(self, batch: TokenBatch, completions: Sequence[int]) -> list[tuple[MicroBatch, bool]]:
        """This rank's micro-batches of `completions`, the same number on every rank, and whether each counts.

        Every forward and backward pass of a sharded policy is a collective, so a rank with fewer micro-batches repeats
        the shortest completion, marked False: that one must weigh nothing and be measured nowhere.
        """
        shares = self.shared_prompt
        if shares == "auto":
            # Sharing costs a gather in every layer; below this ratio it saves more than it costs.
            shares = batch.shared_prompt_ratio < SHARED_PROMPT_BELOW
        split = partial(batch.micro_batches, budget_tokens=self.micro_batch_tokens, shares_prompts=shares)
        if self.ranks.size == 1:
            return [(micro, True) for micro in split(completions)]
        # Every rank computes the same split from the same lengths; nothing is sent.
        own = balance(self._costs(batch, completions), self.ranks.size)[self.ranks.rank]
        micros = [(micro, True) for micro in split([completions[position] for position in own])]
        # The one exchange: packing may fill a different number of micro-batches on each rank.
        wanted = int(self.ranks.stack(torch.tensor(len(micros), device="cpu")).max())
        # A filler is run and thrown away, so the cheapest one.
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

    def logprobs(
        self, micro: MicroBatch, model: PreTrainedModel | None = None
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Log-probs (with gradient) and entropies of the response tokens, under the policy unless `model` is given.

        The gradient is there for tests only: a run calls this where it needs none.
        """
        return run(
            self.policy if model is None else model,
            token_logprobs,
            micro.input_ids,
            micro.packed,
            micro.rows,
            micro.targets,
            temperature=self.temperature,
            fp32=self.fp32_head,
        )

    def loss(
        self, micro: MicroBatch, objective: Objective, tokens: TokenData, *, first_update: bool
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "n"], Statistics]:
        """`loss_with_gradient` of a micro-batch: its loss, with gradient; log-probs, without; what is measured."""
        return run(
            self.policy,
            loss_with_gradient,
            micro,
            objective,
            tokens,
            first_update=first_update,
            temperature=self.temperature,
            fp32=self.fp32_head,
            compiles=self.compiles,
        )

    def values(self, micro: MicroBatch) -> Float[Tensor, "n"]:
        """The critic's values of the states before the response tokens, with gradient."""
        assert self.critic is not None
        return self.critic(run(self.critic.backbone, packed_hidden, micro.input_ids, micro.packed)[micro.rows])


def scored_by_first_update(
    config: Config, objective: Objective, batch: TokenBatch, step: int, num_ranks: int
) -> list[int]:
    """Completions that need no scoring of their own: the first update's forward pass gives their old log-probs.

    Empty if something needs those log-probs earlier, or if a later epoch may need them on another rank.
    """
    algorithm = config.algorithm
    needed_earlier = (
        objective.whole_minibatch
        or objective.correction is not None
        or algorithm.critic
        or algorithm.kl.where == "reward"
    )
    # Each epoch shuffles again: a completion may be on another rank then, which has not seen its log-prob.
    needed_elsewhere = algorithm.epochs > 1 and num_ranks > 1
    if not objective.recomputes_old_logprobs or needed_earlier or needed_elsewhere:
        return []
    # The first mini-batch of the first epoch: before it the weights are those that sampled.
    return next(batch.minibatches(algorithm.minibatch_prompts, minibatch_seed(config.seed, step, epoch=0)))


@torch.no_grad()
def score(
    forward: PolicyForward, objective: Objective, batch: TokenBatch, later: Sequence[int] = ()
) -> tuple[TokenData, Statistics]:
    """The batch's tokens before the updates, and the statistics of the trainer-engine mismatch.

    later: completions whose old log-probs, and mismatch, come from the first update.
    """
    # A batch that was sampled with older weights has no use of the scores without a correction.
    scores_policy = objective.recomputes_old_logprobs and bool(objective.correction is not None or batch.fresh.any())
    policy, ref, values = _forward_passes(forward, batch, later, scores_policy=scores_policy)
    is_later = torch.zeros(len(batch.sequences), dtype=torch.bool, device="cpu")
    is_later[list(later)] = True
    # Expanded from completions to tokens, as everything downstream indexes tokens.
    unscored = is_later[batch.completion_of_token]
    # With old_logprobs=rollout, pi_old is the engine's and no pass of the trainer is needed (verl calls this bypass
    # mode).
    old, corrections, statistics = batch.rollout_logprobs, None, NOTHING
    if scores_policy:
        # The scores are the same on every rank by now: rank 0 measures all of them, the others nothing.
        is_first = forward.ranks.rank == 0
        measured = batch.fresh & ~unscored if is_first else torch.zeros_like(batch.fresh)
        # Tokens of older weights are left out: their difference is staleness, not arithmetic.
        statistics = mismatch_statistics(policy, batch.rollout_logprobs, measured)
        if objective.correction is None:
            # Older weights sampled a carried-over token: the engine's log-prob is that of its behaviour policy.
            old = torch.where(batch.fresh & ~unscored, policy, batch.rollout_logprobs)
        else:
            # pi_old is the trainer's for all tokens, and the weight reaches back to whatever sampled them.
            old = policy
            corrections = objective.correction(old, batch.rollout_logprobs, batch.completion_of_token)
            statistics = merge(statistics, correction_statistics(corrections if is_first else corrections[:0]))
    tokens = TokenData(
        completions=batch.completion_of_token,
        loss_mask=batch.loss_mask,
        completion_tokens=batch.response_lengths[batch.completion_of_token],
        rollout_logprobs=batch.rollout_logprobs,
        fresh=batch.fresh,
        old_logprobs=old,
        unscored=unscored if later else None,
        ref_logprobs=ref if forward.reference else None,
        values=values if forward.critic else None,
        corrections=corrections,
    )
    return tokens, statistics


def _forward_passes(
    forward: PolicyForward, batch: TokenBatch, later: Sequence[int], *, scores_policy: bool
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"], Float[Tensor, "N"]]:
    """Log-probs of policy and reference, values of the critic, of all ranks, on the CPU; 0 where nothing needs them."""
    policy, ref, values = (torch.zeros_like(batch.rollout_logprobs, device=forward.device) for _ in range(3))
    # Two rounds: reference and critic score every completion, the policy only those that no update will.
    now = sorted(set(range(len(batch.sequences))) - set(later))
    for completions, scores in ((now, scores_policy), (list(later), False)):
        if not completions or not (scores or forward.reference or forward.critic):
            continue
        micros = forward.micro_batches(batch, completions)
        for micro, counts in with_status(micros, len(micros), "log-probs before the updates", "micro-batches"):
            micro = micro.to(forward.device)
            # A filler's pass must run, as it takes part in collectives, and must write nothing.
            place = micro.tokens if counts else micro.tokens[:0]
            if scores:
                policy[place] = forward.logprobs(micro)[0][: len(place)]
            if forward.reference:
                # Inside the loop and not around it: with adapters, the reference is the policy with them disabled, and
                # the line above needs them.
                with forward.reference.on(forward.device) as reference:
                    ref[place] = forward.logprobs(micro, reference)[0][: len(place)]
            if forward.critic:
                values[place] = forward.values(micro)[: len(place)]
    # Only what was computed is exchanged: each is a tensor of all tokens.
    needed = (scores_policy, forward.reference, forward.critic)
    policy, ref, values = (
        forward.ranks.sum(scored.cpu()) if used else scored.cpu()
        for scored, used in zip((policy, ref, values), needed, strict=True)
    )
    return policy, ref, values
