"""The policy: `training_step` is one rollout step, all the updates of it (lit/updates.py).

Optimisation is manual, because the number of micro-batches in an update differs from update to update. Nothing here
reads a switch (lit/switches.py does).
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.config import Config
from dapo_lit.lit.counters import Counters
from dapo_lit.lit.datamodule import RolloutStep
from dapo_lit.lit.switches import objective
from dapo_lit.lit.updates import StepUpdates
from dapo_lit.objective.diagnostics import Statistics, finish, mismatch_statistics
from dapo_lit.policy.head import token_logprobs
from dapo_lit.rollout.packing import MicroBatch, TokenBatch


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
        return batch.micro_batches(completions, self.config.trainer.micro_batch_tokens)

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs (with gradient) and entropies [n] of a micro-batch's response tokens."""
        device = self.device
        return token_logprobs(
            self.policy,
            micro.input_ids.to(device),
            micro.layout(device),
            micro.rows.to(device),
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
