"""The updates of one rollout step: epochs, mini-batches, micro-batches, and the statistics collected on the way.

A mini-batch has one denominator, known before its first micro-batch, so that any split into micro-batches gives the
same gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from dapo_lit.config import Config
from dapo_lit.objective.critic import clipped_value_loss, critic_statistics, finish_critic
from dapo_lit.objective.diagnostics import (
    Statistics,
    finish,
    last_epoch_statistics,
    merge,
    mismatch_statistics,
    policy_statistics,
    reference_statistics,
)
from dapo_lit.step.forward import PolicyForward
from dapo_lit.step.objective import Objective
from dapo_lit.step.optimizer_steps import OptimizerSteps
from dapo_lit.step.packing import MicroBatch, TokenBatch, counter_seed
from dapo_lit.step.surrogate import Linearised, linearised
from dapo_lit.step.token_axis import TokenAxis


@dataclass
class StepUpdates:
    """The updates of one rollout step, and what is measured during them."""

    config: Config
    objective: Objective
    forward: PolicyForward
    steps: OptimizerSteps
    backward: Callable[[Tensor], None]
    """Of a loss, through whatever wraps the policy."""
    step: int
    batch: TokenBatch
    tokens: TokenAxis
    """With advantages, on the CPU."""
    statistics: Statistics
    """What scoring has measured; the updates add to it."""
    real_tokens: int = 0
    run_tokens: int = 0
    balances: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.on_device = self.tokens.to(self.forward.device)
        # If nothing was scored before, the updates' own forward passes show the mismatch until the weights move.
        self.measures_mismatch = "mismatch_tokens" not in self.statistics.sums

    def run(self) -> None:
        algorithm = self.config.algorithm
        for epoch in range(algorithm.epochs):
            seed = counter_seed(self.config.seed, self.step, epoch)
            for minibatch in self.batch.minibatches(algorithm.minibatch_prompts, seed):
                self.balances.append(self.forward.balance(self.batch, minibatch))
                loss = self.accumulate_gradient(minibatch, epoch)
                loss_tokens = int(self.batch.loss_tokens[minibatch].sum())
                if loss_tokens == 0:  # overlong filtering masked everything: measured, but no update
                    self.steps.optimizer.zero_grad()
                    continue
                if self.steps.take(loss):
                    self.measures_mismatch = False
                    self.steps.counters.tokens_trained += loss_tokens

    def accumulate_gradient(self, minibatch: Sequence[int], epoch: int) -> Tensor:
        """The gradient of a mini-batch; returns this rank's share of its loss, float64 on the device."""
        micros = self.forward.micro_batches(self.batch, minibatch)
        weights = self._token_weights(minibatch, [micro for micro, counts in micros if counts])
        linear = None
        if self.objective.loss.needs_whole_minibatch and not self.steps.critic_only:
            linear = linearised(
                self.objective.loss,
                self.forward,
                self.tokens,
                self.batch.completion_of_token,
                minibatch,
                micros,
                weights,
                seed=counter_seed(self.config.seed, self.step, epoch, *minibatch),
            )
        # Sharded gradients are reduced after every micro-batch: unreduced ones would be as large as the whole policy.
        weights = weights.to(self.forward.device)
        no_weights, losses = torch.zeros_like(weights), list[Tensor]()
        fills_old = self._fills_old_logprobs(minibatch, epoch)
        for micro, counts in micros:
            micro = micro.to(self.forward.device)
            losses.append(self._accumulate(micro, weights if counts else no_weights, epoch, counts, linear, fills_old))
        return torch.stack(losses).double().sum()

    def _fills_old_logprobs(self, minibatch: Sequence[int], epoch: int) -> bool:
        """Whether the forward passes of this update give the old log-probs of its mini-batch."""
        if epoch or self.tokens.unscored is None:
            return False
        first_token = self.batch.response_lengths[: minibatch[0]].sum()
        return bool(self.tokens.unscored[first_token])

    def _token_weights(self, minibatch: Sequence[int], micros: Sequence[MicroBatch]) -> Tensor:
        """[N] float32 weight of each token in the loss of a mini-batch; 0 where masked and in other mini-batches."""
        batch, ranks, chosen = self.batch, self.forward.ranks, torch.tensor(minibatch)
        micro_batch = torch.zeros(len(batch.sequences), dtype=torch.int64)
        for index, micro in enumerate(micros):
            micro_batch[micro.completions] = ranks.rank * len(batch.sequences) + index
        micro_batch = ranks.sum(micro_batch)  # each completion is in one micro-batch of one rank
        weights = torch.zeros(len(batch.sequences))
        weights[chosen] = self.objective.weights(
            batch.loss_tokens[chosen], batch.group_index[chosen], micro_batch[chosen]
        ).float()
        return weights[batch.completion_of_token] * batch.loss_mask

    def _accumulate(
        self,
        micro: MicroBatch,
        weights: Tensor,
        epoch: int,
        counts: bool,
        linear: Linearised | None,
        fills_old: bool,
    ) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the policy's loss. `counts`: it is measured.

        Everything is on the device, and nothing here waits for it.
        """
        weight, known = weights[micro.tokens], self.on_device
        if counts:
            self.real_tokens += sum(micro.lengths)
            self.run_tokens += micro.input_ids.numel()
        if self.forward.critic is not None:
            self._accumulate_critic(micro, weight, epoch, counts)
        if self.steps.critic_only:
            return weights.new_zeros(())
        forward, objective = self.forward, self.objective
        assert known.advantages is not None
        old, advantages = known.old_logprobs[micro.tokens], known.advantages[micro.tokens]
        ref = None if known.ref_logprobs is None else known.ref_logprobs[micro.tokens]
        corrections = None if known.corrections is None else known.corrections[micro.tokens]
        exact_kl = forward.full_kl(micro) if objective.kl_beta and objective.kl_estimator == "full" else None

        def weighted_loss(logprobs: Tensor, part: slice, entropy: Tensor | None = None) -> Tensor:
            before = torch.where(old[part].isnan(), logprobs.detach(), old[part])  # the first update's ratio is 1
            regularisation = objective.regularisation(logprobs, None if ref is None else ref[part], entropy, exact_kl)
            policy_loss = objective.loss.per_token(logprobs, before, advantages[part])
            if corrections is not None:
                policy_loss = policy_loss * corrections[part]
            return (policy_loss + regularisation) * weight[part]

        if linear is None and exact_kl is None and not objective.entropy_bonus:
            loss, logprobs, entropy = forward.token_loss(micro, weighted_loss)
            self.backward(loss)
        else:
            logprobs, entropy = forward.logprobs(micro)
            if linear is None:
                loss = weighted_loss(logprobs, slice(None), entropy).sum()
                self.backward(loss)
            else:
                regularisation = objective.regularisation(logprobs, ref, entropy, exact_kl)
                slopes, losses = linear.slopes[micro.tokens], linear.losses[micro.tokens]
                self.backward((float(counts) * slopes * logprobs + regularisation * weight).sum())
                loss = ((losses + regularisation) * weight).sum()
        logprobs = logprobs.detach()
        old = self._measure_mismatch(micro, logprobs, fills_old, counts)
        if self.steps.observer and counts:
            policy_weight = weight if corrections is None else weight * corrections
            self.steps.observer.micro_batch(epoch, micro, logprobs, old, advantages, policy_weight)
        if epoch == 0 and counts:
            everything = torch.ones_like(old, dtype=torch.bool)
            self._measure(
                policy_statistics(
                    logprobs,
                    old,
                    advantages,
                    everything,
                    clip_low=objective.clip_low,
                    clip_high=objective.clip_high,
                    clip_dual=objective.clip_dual,
                    entropy=entropy.detach(),
                    completion_tokens=known.completion_tokens[micro.tokens],
                )
            )
            if ref is not None:
                self._measure(reference_statistics(logprobs, ref, everything))
        elif epoch == self.config.algorithm.epochs - 1 and counts:
            bounds = {"clip_low": objective.clip_low, "clip_high": objective.clip_high}
            self._measure(last_epoch_statistics(logprobs, old, advantages, **bounds))
        return loss.detach()

    def _measure_mismatch(self, micro: MicroBatch, logprobs: Tensor, fills_old: bool, counts: bool) -> Tensor:
        """[n] old log-probs, with `fills_old` this update's own, which are kept; measures the mismatch if it is due."""
        known = self.on_device
        old = known.old_logprobs[micro.tokens]
        if not fills_old and not self.measures_mismatch:
            return old
        fresh = known.fresh[micro.tokens]
        if counts:
            self._measure(mismatch_statistics(logprobs, known.rollout_logprobs[micro.tokens], fresh))
        if not fills_old:
            return old
        old = torch.where(fresh, logprobs, old)
        known.old_logprobs[micro.tokens] = old
        return old

    def _accumulate_critic(self, micro: MicroBatch, weight: Tensor, epoch: int, counts: bool) -> None:
        settings, known = self.config.algorithm.critic, self.on_device
        assert settings is not None
        assert known.values is not None
        assert known.returns is not None
        values = self.forward.values(micro, head_only=self.steps.critic_only)
        old, returns = known.values[micro.tokens], known.returns[micro.tokens]
        loss = clipped_value_loss(values, old, returns, clip=settings.clip)
        self.backward(settings.loss_weight * (loss * weight).sum())
        if epoch == 0 and counts:
            everything = torch.ones_like(old, dtype=torch.bool)
            self._measure(critic_statistics(values.detach(), old, returns, everything, clip=settings.clip))

    def _measure(self, measured: Statistics) -> None:
        self.statistics = merge(self.statistics, measured)

    def metrics(self) -> dict[str, float | None]:
        """The metrics of the step, the same on every rank."""
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

    def _reduce(self) -> None:
        """Adds up what each rank measured on its share: one exchange per step."""
        mine = Statistics(*({name: value.cpu() for name, value in part.items()} for part in self.statistics))
        everyone = self.forward.ranks.gather((mine, self.real_tokens, self.run_tokens))
        statistics, real, run = zip(*everyone, strict=True)
        self.statistics, self.real_tokens, self.run_tokens = reduce(merge, statistics), sum(real), sum(run)
