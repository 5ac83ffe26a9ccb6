"""The updates of one rollout step: mini-batches, micro-batches, and what is measured during them.

A mini-batch has one denominator, known before its first micro-batch, so that any split into micro-batches gives the
same gradient.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dapo_lit.objective.critic import clipped_value_loss, critic_statistics, finish_critic
from dapo_lit.objective.diagnostics import (
    Statistics,
    finish,
    merge,
    mismatch_statistics,
    policy_statistics,
    reference_statistics,
)
from dapo_lit.step.minibatches import counter_seed, minibatches
from dapo_lit.step.optimizer_steps import GradientSteps
from dapo_lit.step.packing import MicroBatch
from dapo_lit.step.rank_shares import cost_of, rank_balance
from dapo_lit.step.rollout_step import RolloutStep
from dapo_lit.step.surrogate import Linearised, linearised
from dapo_lit.step.token_axis import Credit, Scores, TokenValues

if TYPE_CHECKING:
    from dapo_lit.lit.module import DAPOModule


class Observer(Protocol):
    """What a replay sees of the updates of a step."""

    def micro_batch(
        self, epoch: int, micro: MicroBatch, logprobs: Tensor, old: Tensor, advantages: Tensor, weights: Tensor
    ) -> None:
        """After a micro-batch: [n] of each of its response tokens, the weight in the loss included."""

    def update(self, loss: float, gradients: Sequence[Tensor]) -> None:
        """Before the optimiser step that the last micro-batches lead to; the gradient is not yet clipped."""


class StepUpdates:
    """The updates of one rollout step, and what is measured during them."""

    def __init__(
        self, module: "DAPOModule", step: RolloutStep, scores: Scores, credit: Credit, statistics: Statistics
    ) -> None:
        assert step.tokens is not None
        self.module = module
        self.step = step.step
        self.batch = step.tokens
        self.scores = scores
        self.credit = credit
        self.on_device = TokenValues.of(step.tokens, scores, credit, module.device)
        self.statistics = statistics
        self.measures_mismatch = "mismatch_tokens" not in statistics.sums
        """Nothing was scored before: until the weights move, the updates' own forward passes tell the mismatch."""
        self.real_tokens = self.run_tokens = 0
        self.balances: list[float] = []
        critic = module.config.algorithm.critic
        self.warms_up_critic = critic is not None and self.step <= critic.warmup_steps

    def run(self) -> None:
        config, module = self.module.config, self.module
        self.steps = GradientSteps(module, self.step, critic_alone=self.warms_up_critic)
        for epoch in range(config.algorithm.epochs):
            for minibatch in minibatches(config, self.batch.group_index, self.step, epoch):
                self.balances.append(rank_balance(self.batch, minibatch, module.ranks, cost_of(module.policy.config)))
                loss = self._backward(minibatch, epoch)
                tokens = int(self.batch.loss_tokens[minibatch].sum())
                if tokens == 0:  # overlong filtering masked everything: measured, but no update
                    self.steps.optimizer.zero_grad()
                    continue
                if self.steps.make(loss):
                    self.measures_mismatch = False
                    module.counters.tokens_trained += tokens

    def _backward(self, minibatch: list[int], epoch: int) -> Tensor:
        """The gradient of a mini-batch; this rank's addend of its loss, float64 on the device."""
        chosen, micros = torch.tensor(minibatch), self.module.micro_batches(self.batch, minibatch)
        weights = self._weights(chosen, [micro for micro, counts in micros if counts])
        linear = None
        if self.module.objective.loss.of_whole_minibatch and not self.warms_up_critic:
            seed = counter_seed(self.module.config.seed, self.step, epoch, *minibatch)
            linear = linearised(self.module, self.batch, self.scores, self.credit, chosen, micros, weights, seed)
        # Sharded gradients are reduced after every micro-batch: unreduced ones would be as large as the whole policy.
        weights = weights.to(self.module.device)
        nothing, losses = torch.zeros_like(weights), list[Tensor]()
        gives_old = self._gives_old(minibatch, epoch)
        for micro, counts in micros:
            micro = micro.to(self.module.device)
            addend = self._accumulate(micro, weights if counts else nothing, epoch, counts, linear, gives_old)
            losses.append(addend)
        return torch.stack(losses).double().sum()

    def _gives_old(self, minibatch: list[int], epoch: int) -> bool:
        """Whether the forward passes of this update tell the old log-probs of its mini-batch."""
        later = self.scores.of_first_update
        if epoch or later is None:
            return False
        first_token = self.batch.response_lengths[: minibatch[0]].sum()
        return bool(later[first_token])

    def _weights(self, chosen: Tensor, micros: list[MicroBatch]) -> Tensor:
        """[completions of the step] weight of the tokens of each completion of a mini-batch, 0 elsewhere."""
        batch, ranks = self.batch, self.module.ranks
        micro_batch = torch.zeros(len(batch.sequences), dtype=torch.int64)
        for index, micro in enumerate(micros):
            micro_batch[micro.completions] = ranks.rank * len(batch.sequences) + index
        micro_batch = ranks.sum(micro_batch)  # each completion is in one micro-batch of one rank
        weights = torch.zeros(len(batch.sequences))
        found = self.module.objective.weights(batch.loss_tokens[chosen], batch.group_index[chosen], micro_batch[chosen])
        weights[chosen] = found.float()
        return weights * batch.carries_loss

    def _accumulate(
        self,
        micro: MicroBatch,
        weights: Tensor,
        epoch: int,
        counts: bool,
        linear: Linearised | None,
        gives_old: bool,
    ) -> Tensor:
        """Forward and backward of one micro-batch; its addend of the policy's loss. `counts`: it is measured.

        All is on the device, and nothing here waits for it.
        """
        weight, known = weights[micro.completions], self.on_device
        if counts:
            self.real_tokens += sum(micro.lengths)
            self.run_tokens += micro.input_ids.numel()
        if self.module.critic is not None:
            self._accumulate_critic(micro, weight, epoch, counts)
        if self.warms_up_critic:
            return weights.new_zeros(())
        module, objective = self.module, self.module.objective
        old, advantages = known.old_logprobs[micro.tokens], known.advantages[micro.tokens]
        ref = None if known.ref_logprobs is None else known.ref_logprobs[micro.tokens]
        corrections = None if known.corrections is None else known.corrections[micro.tokens]
        exact = module.full_kl(micro) if objective.kl_beta and objective.kl_estimator == "full" else None

        def of_tokens(logprobs: Tensor, part: slice, entropy: Tensor | None = None) -> Tensor:
            before = torch.where(old[part].isnan(), logprobs.detach(), old[part])  # the first update's ratio is 1
            beside = objective.terms(logprobs, None if ref is None else ref[part], entropy, exact)
            of_policy = objective.loss.of_tokens(logprobs, before, advantages[part])
            if corrections is not None:
                of_policy = of_policy * corrections[part]
            return (of_policy + beside) * weight[part]

        if linear is None and exact is None and not objective.entropy_bonus:
            loss, logprobs, entropy = module.token_loss(micro, of_tokens)
            module.manual_backward(loss)
        else:
            logprobs, entropy = module.logprobs(micro)
            if linear is None:
                loss = of_tokens(logprobs, slice(None), entropy).sum()
                module.manual_backward(loss)
            else:
                terms = objective.terms(logprobs, ref, entropy, exact)
                slopes, losses = linear.slopes[micro.tokens], linear.losses[micro.tokens]
                module.manual_backward((float(counts) * slopes * logprobs + terms * weight).sum())
                loss = ((losses + terms) * weight).sum()
        old = self._note_old(micro, logprobs.detach(), gives_old, counts)
        if module.observer and counts:
            of_policy = weight if corrections is None else weight * corrections
            module.observer.micro_batch(epoch, micro, logprobs.detach(), old, advantages, of_policy)
        if epoch == 0 and counts:
            everything = torch.ones_like(old, dtype=torch.bool)
            measured = policy_statistics(
                logprobs.detach(),
                old,
                advantages,
                everything,
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
                clip_dual=objective.clip_dual,
                entropy=entropy.detach(),
                completion_tokens=known.response_lengths[micro.completions],
            )
            self.statistics = merge(self.statistics, measured)
            if ref is not None:
                self.statistics = merge(self.statistics, reference_statistics(logprobs.detach(), ref, everything))
        return loss.detach()

    def _note_old(self, micro: MicroBatch, logprobs: Tensor, gives_old: bool, counts: bool) -> Tensor:
        """[n] old log-probs; those that were not scored before the first update are its own."""
        known = self.on_device
        old = known.old_logprobs[micro.tokens]
        if not gives_old and not self.measures_mismatch:
            return old
        fresh = known.fresh[micro.tokens]
        if counts:
            measured = mismatch_statistics(logprobs, known.rollout_logprobs[micro.tokens], fresh)
            self.statistics = merge(self.statistics, measured)
        if not gives_old:
            return old
        old = torch.where(fresh, logprobs, old)
        known.old_logprobs[micro.tokens] = old
        return old

    def _accumulate_critic(self, micro: MicroBatch, weight: Tensor, epoch: int, counts: bool) -> None:
        module, settings = self.module, self.module.config.algorithm.critic
        assert settings is not None
        known = self.on_device
        assert known.values is not None
        assert known.returns is not None
        values = module.values(micro, head_only=self.warms_up_critic)
        old, returns = known.values[micro.tokens], known.returns[micro.tokens]
        loss = clipped_value_loss(values, old, returns, clip=settings.clip)
        module.manual_backward(settings.loss_weight * (loss * weight).sum())
        if epoch == 0 and counts:
            everything = torch.ones_like(old, dtype=torch.bool)
            measured = critic_statistics(values.detach(), old, returns, everything, clip=settings.clip)
            self.statistics = merge(self.statistics, measured)

    def _reduce(self) -> None:
        """Adds up over the ranks what each measured on its share: one collective a step."""
        # The same names on a rank without a share.
        sums, maxima = merge(_nothing_measured(self.module.reference is not None), self.statistics)
        counts = torch.tensor([self.real_tokens, self.run_tokens], dtype=torch.float64)
        device = self.module.device
        measured = torch.stack([value.double().to(device) for value in (*sums.values(), *maxima.values())]).cpu()
        stacked = self.module.ranks.stack(torch.cat([measured, counts]))
        total, largest = stacked.sum(0), stacked.amax(0)
        self.statistics = Statistics(
            dict(zip(sums, total, strict=False)), dict(zip(maxima, largest[len(sums) :], strict=False))
        )
        self.real_tokens, self.run_tokens = (int(count) for count in total[-2:])

    def metrics(self) -> dict[str, float | None]:
        self._reduce()
        return (
            finish(*self.statistics)
            | finish_critic(self.statistics.sums)
            | self.steps.metrics()
            | {
                "perf/pad_frac": 1 - self.real_tokens / self.run_tokens if self.run_tokens else None,
                "perf/balance": sum(self.balances) / len(self.balances),
            }
        )


def _nothing_measured(with_reference: bool) -> Statistics:
    """What is measured of a policy, of no token."""
    none = torch.zeros(0)
    of_policy = policy_statistics(
        none,
        none,
        none,
        none.bool(),
        clip_low=0.2,
        clip_high=0.2,
        clip_dual=None,
        entropy=none,
        completion_tokens=none,
    )
    found = merge(of_policy, mismatch_statistics(none, none, none.bool()))
    return merge(found, reference_statistics(none, none, none.bool())) if with_reference else found
