"""The policy and its updates: `training_step` is one rollout step, all the updates of it.

Optimisation is manual: a mini-batch has one denominator, known before its first micro-batch, so that any split into
micro-batches gives the same gradient. Nothing here reads a switch (lit/switches.py does).
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.config import Config, Optimizer
from dapo_lit.lit.counters import Counters
from dapo_lit.lit.datamodule import RolloutStep
from dapo_lit.lit.switches import objective
from dapo_lit.objective.diagnostics import (
    Statistics,
    finish,
    gradient_noise,
    merge,
    mismatch_statistics,
    policy_statistics,
)
from dapo_lit.policy.head import token_logprobs
from dapo_lit.rollout.packing import MicroBatch, TokenBatch


class NonFiniteError(RuntimeError):
    """Too many updates in a row had a loss or gradient that is not finite."""


def learning_rate(step: int, settings: Optimizer, total_steps: int) -> float:
    """Linear warm-up over rollout steps, then constant or linear to 0 after the last step. `step` counts from 1."""
    warmup = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
    if settings.schedule == "constant" or step <= settings.warmup_steps:
        return settings.lr * warmup
    return settings.lr * (total_steps - step + 1) / (total_steps - settings.warmup_steps)


class DAPOModule(LightningModule):
    """Holds the policy and DAPO's objective.

    Args:
        config: the whole run.
        build_policy: makes the model; called once, in `configure_model`, so that nothing heavy happens before the
            strategy is there.
    """

    def __init__(self, config: Config, build_policy: Callable[[], PreTrainedModel]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.build_policy = build_policy
        self.objective = objective(config.algorithm, config.task.max_response_tokens)
        self.policy: Any = None  # a PreTrainedModel from configure_model on
        self.counters = Counters()
        self.policy_version = 0
        self.bad_updates_in_a_row = 0
        self.step_metrics: dict[str, float | None] = {}

    def configure_model(self) -> None:
        if self.policy is None:
            self.policy = self.build_policy()
            freeze_first_layers(self.policy, self.config.policy.freeze_frac)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        settings = self.config.algorithm.optimizer
        return torch.optim.AdamW(
            [p for p in self.parameters() if p.requires_grad],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    def training_step(self, batch: RolloutStep, batch_idx: int) -> None:
        """All updates of one rollout step; leaves its metrics in `step_metrics`.

        Raises:
            NonFiniteError: after max_bad_updates skipped updates in a row.
        """
        if batch.policy_version != self.policy_version:
            raise RuntimeError(
                f"step {batch.step} was sampled with weights {batch.policy_version}, the policy has "
                f"{self.policy_version}; the loader fetched ahead"
            )
        if batch.tokens is None:  # no group to learn from: no update, and the sampled metrics stand alone
            self.step_metrics = finish({}, {}) | {
                "loss/policy": None,
                "optim/grad_norm": None,
                "optim/grad_noise": None,
            }
            self.step_metrics |= {"optim/lr": None, "time/score_s": 0.0, "time/train_s": 0.0, "perf/pad_frac": None}
            self.step_metrics |= {"optim/bad_updates": 0, "perf/mfu": None}
            return
        self.policy.eval()  # no dropout: the ratio must be 1 before the first update
        started = time.perf_counter()
        old_logprobs, statistics = self._old_logprobs(batch.tokens)
        scored = time.perf_counter()
        updates = StepUpdates(self, batch, old_logprobs, statistics)
        updates.run()
        trained = time.perf_counter()
        self.policy_version += 1
        self.step_metrics = updates.metrics() | {
            "time/score_s": scored - started,
            "time/train_s": trained - scored,
            "perf/mfu": self._mfu(updates.real_tokens, trained - scored),
        }

    def _old_logprobs(self, batch: TokenBatch) -> tuple[Tensor, Statistics]:
        """[N] log-probs of pi_old, and the trainer-engine mismatch where the trainer has scored the batch."""
        if self.config.algorithm.old_logprobs == "rollout":
            return batch.rollout_logprobs, Statistics({}, {})
        old = torch.empty_like(batch.rollout_logprobs)
        with torch.no_grad():
            for micro in self.micro_batches(batch, range(len(batch.sequences))):
                old[micro.tokens] = self.logprobs(micro)[0].cpu()
        fresh = batch.fresh[batch.completion_of_token]
        statistics = mismatch_statistics(old, batch.rollout_logprobs, fresh)
        # Older weights sampled a carried-over completion: the engine's log-probs are its behaviour policy.
        return torch.where(fresh, old, batch.rollout_logprobs), statistics

    def micro_batches(self, batch: TokenBatch, completions: Any) -> Iterator[MicroBatch]:
        return batch.micro_batches(completions, self.config.trainer.micro_batch_tokens, pad_id=0)

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs (with gradient) and entropies [n] of a micro-batch's response tokens."""
        device = self.device
        return token_logprobs(
            self.policy,
            micro.input_ids.to(device),
            micro.rows.to(device),
            micro.columns.to(device),
            micro.targets.to(device),
            temperature=self.config.rollout.temperature,
        )

    def _mfu(self, tokens: int, seconds: float) -> float | None:
        peak = self.config.trainer.peak_tflops
        if peak is None or seconds <= 0:
            return None
        return 6 * sum(p.numel() for p in self.policy.parameters()) * tokens / seconds / (peak * 1e12)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["dapo_lit"] = {
            "counters": self.counters.state_dict(),
            "policy_version": self.policy_version,
            "bad_updates_in_a_row": self.bad_updates_in_a_row,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # A checkpoint of the last step says that the loop is over; with a larger budget it is not.
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False
        state = checkpoint["dapo_lit"]
        self.counters.load_state_dict(state["counters"])
        self.policy_version = state["policy_version"]
        self.bad_updates_in_a_row = state["bad_updates_in_a_row"]


class StepUpdates:
    """The updates of one rollout step, and what is measured during them."""

    def __init__(self, module: DAPOModule, step: RolloutStep, old_logprobs: Tensor, statistics: Statistics) -> None:
        assert step.tokens is not None
        self.module = module
        self.step = step.step
        self.batch = step.tokens
        self.old_logprobs = old_logprobs
        self.statistics = statistics
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.gradient_sum: list[Tensor] | None = None
        self.bad_updates = 0
        self.real_tokens = self.padded_tokens = 0
        self.trainable = [p for p in module.parameters() if p.requires_grad]

    def run(self) -> None:
        config, module = self.module.config, self.module
        optimizer = module.optimizers()
        self.lr = learning_rate(self.step, config.algorithm.optimizer, config.budget.steps)
        for group in optimizer.param_groups:
            group["lr"] = self.lr
        for epoch in range(config.algorithm.epochs):
            for minibatch in self._minibatches(epoch):
                chosen = torch.tensor(minibatch)
                loss_tokens = self.batch.loss_tokens[chosen]
                weights = torch.zeros(len(self.batch.sequences))
                weights[chosen] = module.objective.weights(loss_tokens, self.batch.group_index[chosen]).float()
                weights *= self.batch.carries_loss
                loss = sum(
                    self._accumulate(micro, weights, epoch) for micro in module.micro_batches(self.batch, minibatch)
                )
                if loss_tokens.sum() == 0:  # overlong filtering masked everything: measured, but no update
                    optimizer.zero_grad()
                    continue
                if self._update(optimizer, float(loss)):
                    module.counters.tokens_trained += int(loss_tokens.sum())

    def _minibatches(self, epoch: int) -> Iterator[list[int]]:
        """Whole groups, shuffled by a seed of (run, step, epoch)."""
        config, groups = self.module.config, self.batch.group_index
        generator = torch.Generator().manual_seed(counter_seed(config.seed, self.step, epoch))
        order = torch.randperm(int(groups.max()) + 1, generator=generator)
        for chosen in order.split(config.algorithm.minibatch_prompts):
            yield torch.isin(groups, chosen).nonzero().flatten().tolist()

    def _accumulate(self, micro: MicroBatch, weights: Tensor, epoch: int) -> Tensor:
        """Forward and backward of one micro-batch; its addend of the loss."""
        module, objective = self.module, self.module.objective
        logprobs, entropy = module.logprobs(micro)
        old = self.old_logprobs[micro.tokens].to(logprobs.device)
        advantages = self.batch.advantages[micro.completions].to(logprobs.device)
        token_loss = objective.token_loss(logprobs, old, advantages)
        loss = (token_loss * weights[micro.completions].to(logprobs.device)).sum()
        module.manual_backward(loss)
        self.real_tokens += micro.num_real_tokens
        self.padded_tokens += micro.input_ids.numel()
        if epoch == 0:
            statistics = policy_statistics(
                logprobs.detach(),
                old,
                advantages,
                torch.ones_like(old, dtype=torch.bool),
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
                clip_dual=objective.clip_dual,
                entropy=entropy,
                completion_tokens=self.batch.response_lengths[micro.completions].to(logprobs.device),
            )
            self.statistics = merge(self.statistics, statistics)
        return loss.detach()

    def _update(self, optimizer: Any, loss: float) -> bool:
        """One optimiser step, unless the loss or the gradient norm is not finite; whether it was made."""
        module, settings = self.module, self.module.config.algorithm.optimizer
        gradients = [p.grad for p in self.trainable if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not (math.isfinite(loss) and math.isfinite(float(norm))):
            optimizer.zero_grad()
            self.bad_updates += 1
            module.bad_updates_in_a_row += 1
            if module.bad_updates_in_a_row >= settings.max_bad_updates:
                raise NonFiniteError(
                    f"step {self.step}: {module.bad_updates_in_a_row} updates in a row had a loss or gradient that is "
                    "not finite and were skipped; lower algorithm.optimizer.lr, or use policy.dtype=float32"
                )
            return False
        module.bad_updates_in_a_row = 0
        self.losses.append(loss)
        self.norms.append(float(norm))
        if module.config.trainer.grad_noise:
            self._add_to_gradient_sum(gradients)
        if settings.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.trainable, settings.grad_clip, norm)
        optimizer.step()
        optimizer.zero_grad()
        module.counters.gradient_step += 1
        return True

    def _add_to_gradient_sum(self, gradients: list[Tensor]) -> None:
        if self.gradient_sum is None:
            self.gradient_sum = [g.clone() for g in gradients]
        else:
            torch._foreach_add_(self.gradient_sum, gradients)

    def metrics(self) -> dict[str, float | None]:
        noise = None
        if self.gradient_sum is not None:
            summed = float(torch.nn.utils.get_total_norm(self.gradient_sum))
            noise = gradient_noise(sum(n**2 for n in self.norms), summed**2, len(self.norms))
        return finish(*self.statistics) | {
            "loss/policy": sum(self.losses) / len(self.losses) if self.losses else None,
            "optim/grad_norm": sum(self.norms) / len(self.norms) if self.norms else None,
            "optim/grad_noise": noise,
            "optim/lr": self.lr,
            "optim/bad_updates": self.bad_updates,
            "perf/pad_frac": 1 - self.real_tokens / self.padded_tokens if self.padded_tokens else None,
        }


def freeze_first_layers(model: PreTrainedModel, fraction: float) -> None:
    """Stops the gradient in the first `fraction` of the layers (rounded down), and in the embedding if any is frozen.

    A tied embedding is the head as well and stays trained.
    """
    layers = model.base_model.layers
    frozen = int(fraction * len(layers))
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    if frozen and not model.config.tie_word_embeddings:
        model.get_input_embeddings().requires_grad_(False)


def counter_seed(*counters: int) -> int:
    """A 63-bit seed from counters, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(counters).encode(), digest_size=8).digest()) >> 1
