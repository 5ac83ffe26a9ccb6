"""The policy: `training_step` is one rollout step, all the updates of it (step/updates.py).

Optimisation is manual, because the number of micro-batches in an update differs from update to update. Nothing here
reads a switch (recipe/switches.py does).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.config import Config
from dapo_lit.objective.critic import finish_critic
from dapo_lit.objective.diagnostics import finish
from dapo_lit.policy.attention import hidden_states
from dapo_lit.policy.critic import Critic
from dapo_lit.policy.divergence import token_full_kl
from dapo_lit.policy.head import LossOfTokens, token_logprobs, token_loss
from dapo_lit.policy.lora import fingerprint, only_trained
from dapo_lit.policy.reference import Reference
from dapo_lit.policy.sharding import gathered_head, run
from dapo_lit.ranks import Ranks
from dapo_lit.recipe.credit import completion_means
from dapo_lit.recipe.models import Fill, check_adapters, put_together, shard_and_fill
from dapo_lit.recipe.switches import objective
from dapo_lit.rollout.records import Group
from dapo_lit.runs.random_state import random_state, restore_random_state
from dapo_lit.step.before_updates import score, scored_by_first_update
from dapo_lit.step.counters import Counters
from dapo_lit.step.optimizer_steps import NonFiniteError
from dapo_lit.step.packing import MicroBatch, TokenBatch
from dapo_lit.step.rank_shares import cost_of, rank_micro_batches
from dapo_lit.step.rollout_step import RolloutStep
from dapo_lit.step.updates import Observer, StepUpdates

EMPTY_STEP: dict[str, float | None] = {
    "loss/policy": None,
    "optim/grad_norm": None,
    "optim/grad_noise": None,
    "optim/lr": None,
    "optim/bad_updates": 0,
    "time/score_s": 0.0,
    "time/train_s": 0.0,
    "perf/mfu": None,
    "perf/pad_frac": None,
    "perf/balance": None,
}
"""Metrics of the updates in a step without any."""

SHARED_PROMPT_BELOW = 0.85
"""trainer.shared_prompt=auto: prompts are shared where that leaves less than this share of the tokens."""


class DAPOModule(LightningModule):
    """Holds the policy and DAPO's objective.

    Args:
        config: the whole run.
        build_policy: makes the model; called once, in `configure_model`, so that nothing heavy happens before the
            strategy is there.
        ranks: the processes that train together.
        fill: gives a sharded policy that was built without weights its shards.
    """

    def __init__(
        self,
        config: Config,
        build_policy: Callable[[], PreTrainedModel],
        ranks: Ranks | None = None,
        fill: Fill | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config = config
        self.build_policy = build_policy
        self.ranks = ranks or Ranks()
        self.fill = fill
        self.objective = objective(config.algorithm, config.task.max_response_tokens)
        self.policy: Any = None  # a PreTrainedModel from configure_model on
        self.critic: Critic | None = None
        self.reference: Reference | None = None
        self.observer: Observer | None = None
        self.counters = Counters()
        self.policy_version = 0
        self.bad_updates_in_a_row = 0
        self.step_metrics: dict[str, float | None] = {}
        self.base_fingerprint: int | None = None
        """Of the weights beside which there are adapters; None: there are none."""

    def configure_model(self) -> None:
        if self.policy is None:
            models = put_together(self.build_policy(), self.config)
            if self.config.trainer.strategy == "fsdp":
                device = self.trainer.strategy.root_device
                self.ranks = shard_and_fill(models, self.config, self.ranks, self.device_mesh, self.fill, device)
            models.initialise_adapters(self.config.seed)
            self.policy, self.reference, self.critic = models.policy, models.reference, models.critic
            if self.config.policy.lora is not None:
                self.base_fingerprint = fingerprint(models.policy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        settings = self.config.algorithm.optimizer
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.policy.parameters() if p.requires_grad], "lr_factor": 1.0}
        ]
        if self.critic is not None:
            assert self.config.algorithm.critic is not None
            factor = self.config.algorithm.critic.lr / settings.lr
            groups.append({"params": [p for p in self.critic.parameters() if p.requires_grad], "lr_factor": factor})
        return torch.optim.AdamW(
            groups,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            # Under tensor parallelism the tensors lie on two meshes, which no one kernel takes.
            foreach=None if self.config.trainer.sharding.tensor_parallel == 1 else False,
        )

    def training_step(self, batch: RolloutStep, batch_idx: int) -> None:
        """All updates of one rollout step; leaves its metrics in `step_metrics`."""
        if batch.policy_version != self.policy_version:
            raise RuntimeError(
                f"step {batch.step} was sampled with weights {batch.policy_version}, the policy has "
                f"{self.policy_version}; the loader fetched ahead"
            )
        if batch.tokens is None:  # no group to learn from: no update, and the sampled metrics stand alone
            self.step_metrics = finish({}, {}) | finish_critic({}) | EMPTY_STEP
            return
        self.policy.eval()  # no dropout: the ratio must be 1 before the first update
        started = time.perf_counter()
        scores, statistics = score(self, batch.tokens, scored_by_first_update(self, batch))
        credit = self.objective.credit(batch.tokens, scores)
        note_advantages(batch.collected.accepted, completion_means(credit.advantages, batch.tokens))
        scored = time.perf_counter()
        updates = StepUpdates(self, batch, scores, credit, statistics)
        updates.run()
        if self.reference:
            self.reference.rest()
        trained = time.perf_counter()
        self.policy_version += 1
        self.step_metrics = updates.metrics() | {
            "time/score_s": scored - started,
            "time/train_s": trained - scored,
            "perf/mfu": self._mfu(updates.real_tokens, trained - scored),
        }

    def on_train_batch_end(self, outputs: Any, batch: RolloutStep, batch_idx: int) -> None:
        """The step is over, its row written: a run that ends here can be looked at, and goes on from here.

        Raises:
            NonFiniteError: max_bad_updates updates in a row were skipped.
        """
        skipped = self.bad_updates_in_a_row
        if skipped >= self.config.algorithm.optimizer.max_bad_updates:
            raise NonFiniteError(
                f"step {batch.step}: {skipped} updates in a row had a loss or gradient that is not finite and were "
                "skipped; lower algorithm.optimizer.lr, or use policy.dtype=float32"
            )

    def micro_batches(self, batch: TokenBatch, completions: Sequence[int]) -> list[tuple[MicroBatch, bool]]:
        """This rank's micro-batches of `completions`, as many on every rank; False: one that only keeps step."""
        settings = self.config.trainer
        shares = settings.shared_prompt
        if shares == "auto":
            shares = batch.shared_prompt_ratio < SHARED_PROMPT_BELOW
        split = partial(batch.micro_batches, budget_tokens=settings.micro_batch_tokens, shares_prompts=shares)
        return rank_micro_batches(batch, completions, split, self.ranks, cost_of(self.policy.config))

    def logprobs(self, micro: MicroBatch, model: PreTrainedModel | None = None) -> tuple[Tensor, Tensor]:
        """Log-probs (with gradient) and entropies [n] of a micro-batch's response tokens; of the policy by default.

        Here and below, the micro-batch is on the policy's device.
        """
        return run(
            self.policy if model is None else model,
            token_logprobs,
            micro.input_ids,
            micro.packed,
            micro.rows,
            micro.targets,
            temperature=self.config.rollout.temperature,
            entropy_gradient=self.objective.entropy_bonus > 0,
            fp32=self.config.trainer.fp32_head,
        )

    def token_loss(self, micro: MicroBatch, of_tokens: LossOfTokens) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of a loss over a micro-batch's response tokens; log-probs and entropies [n] without gradient."""
        if self.config.trainer.strategy == "fsdp":  # the head's weight is there only inside the policy's own forward
            logprobs, entropy = self.logprobs(micro)
            return of_tokens(logprobs, slice(None)).sum(), logprobs.detach(), entropy
        hidden = self._states(self.policy, micro)
        weight = self.policy.get_output_embeddings().weight
        temperature, fp32 = self.config.rollout.temperature, self.config.trainer.fp32_head
        return token_loss(hidden, weight, micro.targets, of_tokens, temperature=temperature, fp32=fp32)

    def values(self, micro: MicroBatch, *, head_only: bool = False) -> Tensor:
        """[n] of the critic, with gradient, for the state before each response token."""
        assert self.critic is not None
        shares = self.critic.backbone is None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (shares and head_only)):
            hidden = self._states(self.policy if shares else self.critic.backbone, micro)
        return self.critic(hidden)

    def full_kl(self, micro: MicroBatch) -> Tensor:
        """[n] exact divergence from the reference at each response token, with gradient."""
        assert self.reference is not None
        with self.reference.on(self.device) as reference, torch.no_grad():
            hidden = self._states(reference, micro)
        return run(
            self.policy,
            token_full_kl,
            micro.input_ids,
            micro.packed,
            micro.rows,
            ref_hidden=hidden,
            ref_weight=None if self.reference.is_policy else gathered_head(self.reference.model),
            temperature=self.config.rollout.temperature,
        )

    @staticmethod
    def _states(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
        """[n, hidden] of a model before each response token."""
        return run(model, hidden_states, micro.input_ids, micro.packed, micro.rows)

    def _mfu(self, tokens: int, seconds: float) -> float | None:
        peak = self.config.trainer.peak_tflops
        if peak is None or seconds <= 0:
            return None
        operations = sum((6 if p.requires_grad else 4) * p.numel() for p in self.policy.parameters())
        return operations * tokens / seconds / (peak * 1e12)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.config.policy.lora is not None:
            checkpoint["state_dict"] = only_trained(self, checkpoint["state_dict"])
        checkpoint["dapo_lit"] = {
            "base_fingerprint": self.base_fingerprint,
            "random": self.ranks.gather(random_state()),
            "counters": self.counters.state_dict(),
            "policy_version": self.policy_version,
            "bad_updates_in_a_row": self.bad_updates_in_a_row,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # A checkpoint of the last step says that the loop is over; with a larger budget it is not.
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False
        state = checkpoint["dapo_lit"]
        of_ranks = state.get("random", ())
        if len(of_ranks) == self.ranks.size:  # with another number there is nothing to go on with
            restore_random_state(of_ranks[self.ranks.rank])
        if self.config.policy.lora is not None:
            check_adapters(
                self, checkpoint, self.base_fingerprint if self.ranks.rank == 0 else state["base_fingerprint"]
            )
        self.counters.load_state_dict(state["counters"])
        self.policy_version = state["policy_version"]
        self.bad_updates_in_a_row = state["bad_updates_in_a_row"]

    @property
    def strict_loading(self) -> bool:
        """A checkpoint of adapters lacks the base; that it has every adapter is checked when it is loaded."""
        return self.config.policy.lora is None


def note_advantages(groups: Sequence[Group], means: Tensor) -> None:
    """Writes [B] advantages to the completions of `groups`, for the tables of rollouts."""
    completions = [completion for group in groups for completion in group.completions]
    for completion, mean in zip(completions, means.tolist(), strict=True):
        completion.advantage = mean
