"""The updates of one rollout step: epochs, mini-batches, micro-batches, and what is measured on the way.

A mini-batch has one denominator, known before its first micro-batch, so that any split into micro-batches gives the
same gradient.
"""

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from ablations.screen import StatusLine
from dapo_lit.config import Config
from dapo_lit.objective.diagnostics import finish, mismatch_statistics
from dapo_lit.objective.losses import clipped_value_loss, finish_critic
from dapo_lit.objective.tokens import NOTHING, Statistics, Tokens, merge
from dapo_lit.ranks import Ranks
from dapo_lit.seeds import loss_seed, minibatch_seed
from dapo_lit.step.batch import MicroBatch, RolloutStep, TokenBatch
from dapo_lit.step.loss import Objective, TokenData
from dapo_lit.step.optimizer import OptimizerSteps
from dapo_lit.step.scoring import PolicyForward


@dataclass
class StepUpdates:
    """The updates of one rollout step, and what is measured during them."""

    config: Config
    objective: Objective
    forward: PolicyForward
    steps: OptimizerSteps
    backward: Callable[[Tensor], None]
    """`loss.backward()`, through whatever wraps the policy."""
    step: int
    batch: TokenBatch
    tokens: TokenData
    """With advantages, on the CPU."""
    statistics: Statistics
    """Starts with what scoring measured; the updates add the first epoch's."""
    last_epoch: Statistics = NOTHING
    """Empty where the last epoch is the first."""
    real_tokens: int = 0
    run_tokens: int = 0
    balances: list[float] = field(default_factory=list)
    progress: tuple[int, int] = (0, 1)
    """Updates so far, and all of them."""

    def __post_init__(self) -> None:
        # Once for all micro-batches and epochs: a transfer each would make the host wait for the device each time.
        self.on_device = self.tokens.to(self.forward.device)
        self.line = StatusLine(f"step {self.step}")
        # If nothing was scored before, the updates' own forward passes show the mismatch until the weights change.
        self.measures_mismatch = "mismatch_tokens" not in self.statistics.sums
        # Whether an update was made: until then the weights are those that the step was scored with.
        self.has_updated = False

    def run(self) -> None:
        algorithm = self.config.algorithm
        for epoch in range(algorithm.epochs):
            # Keyed by step and epoch, not drawn from a generator: a resumed run shuffles as the one that was killed
            # would have, and every rank shuffles alike without an exchange.
            seed = minibatch_seed(self.config.seed, self.step, epoch)
            minibatches = list(self.batch.minibatches(algorithm.minibatch_prompts, seed))
            for index, minibatch in enumerate(minibatches):
                self.progress = epoch * len(minibatches) + index, algorithm.epochs * len(minibatches)
                # Before the passes, from lengths only: what the split among ranks is worth does not depend on how fast
                # they are.
                self.balances.append(self.forward.balance(self.batch, minibatch))
                loss = self.accumulate_gradient(minibatch, epoch)
                # From the whole mini-batch over all ranks, so that all of them skip the update or none does: a rank
                # that took it alone would wait in the reduction for ever.
                loss_tokens = int(self.batch.loss_tokens[minibatch].sum())
                # Overlong filtering masked everything: measured, but no update.
                if loss_tokens == 0:
                    # Backward passes have run, with weights 0; what they left must not reach the next mini-batch.
                    self.steps.optimizer.zero_grad()
                    continue
                if self.steps.take(loss):
                    # From here on the policy is no longer the one that sampled: what differs now is training, not the
                    # engine.
                    self.measures_mismatch, self.has_updated = False, True
                    self.steps.counters.tokens_trained += loss_tokens
        self.line.erase()

    def accumulate_gradient(self, minibatch: Sequence[int], epoch: int) -> Float64[Tensor, ""]:
        """The gradient of a mini-batch; returns this rank's share of its loss, on the device."""
        # Fillers, whose `counts` is False, exist because a sharded policy gathers weights in every pass: ranks must run
        # the same number of them.
        micros = self.forward.micro_batches(self.batch, minibatch)
        # Eq. 12 before the first forward pass. Dividing by the tokens of a micro-batch, as a mean does, would weigh a
        # short micro-batch like a long one: with 3 and 100 tokens of loss 1 and 0 it gives 0.5 instead of 0.03.
        weights = self._token_weights(minibatch, [micro for micro, counts in micros if counts])
        tokens = self.on_device
        if self.objective.whole_minibatch and not self.steps.critic_only:
            # By its completions, so that the draws of a mini-batch do not depend on how many came before it.
            seed = loss_seed(self.config.seed, self.step, epoch, minibatch)
            losses, slopes = self._linearised(weights, minibatch, micros, seed)
            tokens = replace(tokens, losses=losses, slopes=slopes)
        weights = weights.to(self.forward.device)
        first_update = self._gives_old_logprobs(minibatch, epoch)
        parts = list[Tensor]()
        # Sharded gradients are reduced after every micro-batch: unreduced ones would be as large as the whole policy.
        done, updates = self.progress
        for index, (micro, counts) in enumerate(micros):
            self.line.update(done + index / len(micros), updates, f"{done} of {updates} updates")
            micro = micro.to(self.forward.device)
            # A view by token, never by row: a micro-batch has its completions in any order.
            own = tokens[micro.tokens].weighted(weights)
            if not counts:
                # A filler has its place in the collectives of a sharded policy, and adds nothing to loss and gradient.
                nothing = torch.zeros_like(own.old_logprobs)
                own = replace(own, weights=nothing, slopes=None if own.slopes is None else nothing)
            parts.append(self._accumulate(micro, own, epoch, counts, first_update))
        # Float64, or the logged loss would depend on the number of micro-batches in its last digits.
        return torch.stack(parts).double().sum()

    def _gives_old_logprobs(self, minibatch: Sequence[int], epoch: int) -> bool:
        """True if the forward passes of this update give the old log-probs of its mini-batch."""
        if epoch or self.tokens.unscored is None:
            return False
        # Scoring left out the first mini-batch as a whole, so one of its tokens stands for all.
        first_token = self.batch.response_lengths[: minibatch[0]].sum()
        return bool(self.tokens.unscored[first_token])

    def _token_weights(self, minibatch: Sequence[int], micros: Sequence[MicroBatch]) -> Float32[Tensor, "B"]:
        """Weight of each token of a completion in the loss of a mini-batch; 0 in other mini-batches."""
        batch, ranks, chosen = self.batch, self.forward.ranks, torch.tensor(minibatch, device="cpu")
        # Only the denominator `microbatch`, kept to compare with trainers that average per micro-batch, reads this
        # index.
        micro_batch = torch.zeros(len(batch.sequences), dtype=torch.int64, device="cpu")
        for index, micro in enumerate(micros):
            micro_batch[micro.completions] = ranks.rank * len(batch.sequences) + index
        # Each completion is in one micro-batch of one rank.
        micro_batch = ranks.sum(micro_batch)
        weights = torch.zeros(len(batch.sequences), device="cpu")
        # 0 elsewhere: a token of another mini-batch that strays in adds nothing, instead of the weight of its own.
        weights[chosen] = self.objective.weights(
            batch.loss_tokens[chosen], batch.group_index[chosen], micro_batch[chosen]
        ).float()
        return weights

    @torch.no_grad()
    def _linearised(
        self, weights: Tensor, minibatch: Sequence[int], micros: Sequence[tuple[MicroBatch, bool]], seed: int
    ) -> tuple[Float32[Tensor, "N"], Float32[Tensor, "N"]]:
        """Losses and slopes of a policy loss that looks at the whole mini-batch; the same on every rank.

        A forward pass without gradient gives the log-probs of all tokens on all ranks. The loss of those has a slope
        at each token, and the sum of slopes times log-probs, which any split into micro-batches adds up to, has the
        loss's own gradient at the present weights. The loss draws its random numbers from `seed`.
        """
        forward, device, tokens = self.forward, self.forward.device, self.tokens
        logprobs, entropy = (torch.zeros_like(tokens.old_logprobs, device=device) for _ in range(2))
        for micro, counts in micros:
            micro = micro.to(device)
            found = forward.logprobs(micro)
            if counts:
                logprobs[micro.tokens], entropy[micro.tokens] = found
        # Each rank has filled its own places and left the others at 0: the sum is a gather.
        logprobs, entropy = (forward.ranks.sum(x.cpu()) for x in (logprobs, entropy))
        places = torch.isin(tokens.completions, torch.tensor(minibatch, device="cpu")).nonzero().flatten()
        own = tokens[places].weighted(weights)
        # The old log-probs came from another pass of the same weights: their difference is rounding, and a loss with
        # |log r| (KL-Cov) would take its sign for a direction. Ratio 1 by construction, as in `loss_with_gradient`.
        if not self.has_updated and self.objective.recomputes_old_logprobs:
            own = own.scored_by(logprobs[places])
        assert own.advantages is not None
        assert own.weights is not None
        with torch.enable_grad():
            # A leaf that stands for the forward pass: autograd gives d loss / d log-prob of each token, and the
            # micro-batches carry it on to the weights later, one at a time.
            variable = logprobs[places].requires_grad_()
            losses, _ = self.objective.policy_loss(
                Tokens(
                    logprobs=variable,
                    old_logprobs=own.old_logprobs,
                    advantages=own.advantages,
                    entropy=entropy[places],
                    completions=own.completions,
                    mask=own.loss_mask,
                    generator=torch.Generator(device="cpu").manual_seed(seed),
                ),
                self.objective.bounds,
            )
            (slopes,) = torch.autograd.grad((losses * own.weights).sum(), variable)
        if own.corrections is not None:
            # A token's weight is that of its own gradient: a loss of whole completions is the same number at all
            # tokens, and weighting that would scale the completion and mask no token.
            losses, slopes = losses.detach() * own.corrections, slopes * own.corrections
        # At the places of the batch, so that a micro-batch picks its own as it picks every other field.
        whole_losses, whole_slopes = torch.zeros_like(logprobs), torch.zeros_like(logprobs)
        whole_losses[places], whole_slopes[places] = losses.detach().to(slopes.dtype), slopes
        return whole_losses.to(device), whole_slopes.to(device)

    def _accumulate(self, micro: MicroBatch, own: TokenData, epoch: int, counts: bool, first_update: bool) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the policy's loss.

        Everything is on the device, and nothing here waits for it.

        own: the tokens of the micro-batch, with weights.
        counts: it is measured.
        first_update: its forward pass gives the old log-probs.
        """
        if counts:
            self.real_tokens += sum(micro.lengths)
            self.run_tokens += micro.input_ids.numel()
        if self.forward.critic is not None:
            # First, while the policy's activations are not there: both together would need twice the memory.
            self._accumulate_critic(micro, own, measured=counts and epoch == 0)
        if self.steps.critic_only:
            return own.old_logprobs.new_zeros(())
        loss, logprobs, measured = self.forward.loss(micro, self.objective, own, first_update=first_update)
        # Through Lightning's strategy: calling loss.backward() would skip its precision and its hooks.
        self.backward(loss)
        # Before the first update trainer and engine have the same weights, so the difference is arithmetic alone.
        if counts and (first_update or self.measures_mismatch):
            self._measure(mismatch_statistics(logprobs, own.rollout_logprobs, own.fresh))
        if first_update:  # further epochs compare with these
            own = own.scored_by(logprobs)
            # In place, in the copy that all epochs read: a second epoch has its ratio to the policy before the updates.
            self.on_device.old_logprobs[micro.tokens] = own.old_logprobs
        if counts and self.steps.observer:
            assert own.weights is not None
            assert own.advantages is not None
            # What multiplies the policy loss; the regularisers have the weight without the correction.
            policy_weight = own.weights if own.corrections is None else own.weights * own.corrections
            self.steps.observer.micro_batch(epoch, micro, logprobs, own.old_logprobs, own.advantages, policy_weight)
        if counts and epoch == 0:
            self._measure(measured)
        # Clipping is 0 in a first update by construction; how far the last epoch gets from pi_old is what its bounds
        # decide.
        elif counts and epoch == self.config.algorithm.epochs - 1:
            self.last_epoch = merge(self.last_epoch, measured)
        return loss.detach()

    def _accumulate_critic(self, micro: MicroBatch, own: TokenData, *, measured: bool) -> None:
        settings = self.config.algorithm.critic
        assert settings is not None
        assert own.weights is not None
        assert own.values is not None
        assert own.returns is not None
        values = self.forward.values(micro)
        losses, statistics = clipped_value_loss(values, own.values, own.returns, clip=settings.clip)
        # With the policy's weights: values are averaged over the same tokens as the loss.
        self.backward(settings.loss_weight * (losses * own.weights).sum())
        if measured:
            self._measure(statistics)

    def _measure(self, measured: Statistics) -> None:
        self.statistics = merge(self.statistics, measured)

    def metrics(self) -> dict[str, float | None]:
        """The metrics of the step, the same on every rank."""
        self._reduce()
        return (
            finish(self.statistics, self.last_epoch)
            | finish_critic(self.statistics)
            | self.steps.metrics()
            | {
                "perf/pad_frac": 1 - self.real_tokens / self.run_tokens if self.run_tokens else None,
                "perf/balance": sum(self.balances) / len(self.balances),
            }
        )

    def _reduce(self) -> None:
        """Adds up what each rank measured on its share: one exchange per step."""
        mine = [
            Statistics(*({name: value.cpu() for name, value in part.items()} for part in statistics))
            for statistics in (self.statistics, self.last_epoch)
        ]
        # Sums and counts, not means: means of ranks with different numbers of tokens would not add up to that of all.
        everyone = self.forward.ranks.gather((*mine, self.real_tokens, self.run_tokens))
        first, last, real, run = zip(*everyone, strict=True)
        self.statistics, self.last_epoch = reduce(merge, first), reduce(merge, last)
        self.real_tokens, self.run_tokens = sum(real), sum(run)


def step_row(
    batch: RolloutStep, updates: Mapping[str, Any], seconds: float, device: torch.device, ranks: Ranks
) -> dict[str, Any]:
    """One row, with the largest times, memory and number of recompilations over the ranks."""
    row = batch.metrics | dict(updates)
    row |= {
        "time/sync_s": batch.sync_s,
        "time/wait_s": batch.waited_s or 0.0,
        "perf/tokens_per_s": batch.collected.tokens_generated / seconds,
        "memory/peak_gb": peak_memory_gb(device),
    }
    if ranks.size == 1:
        return row
    # All ranks wait for the slowest.
    keys = [key for key in sorted(row) if key.startswith(("time/", "memory/", "perf/recompiles"))]
    largest = ranks.stack(torch.tensor([row[key] for key in keys], dtype=torch.float64, device="cpu")).amax(0)
    return row | dict(zip(keys, largest.tolist(), strict=True))


def peak_memory_gb(device: torch.device) -> float:
    """Most memory allocated on a CUDA device since the last call; elsewhere this process's largest resident memory."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        # A peak of the step, not of the run: growth over steps is what shows a leak.
        torch.cuda.reset_peak_memory_stats(device)
        return peak / 1e9
    # ru_maxrss is in bytes on macOS and in kilobytes on Linux.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
