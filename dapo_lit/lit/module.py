"""Lightning's module of the policy: `training_step` is one rollout step with all its updates (step/__init__.py).

Optimisation is manual, because the number of micro-batches differs from update to update. Nothing here reads a switch
(switches/algorithm.py does).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Self

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from dapo_lit.build.components import RunComponents
from dapo_lit.build.models import Fill, build_models, check_adapters, compiles, shard_and_fill
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.config.identity import differences, identity, with_defaults
from dapo_lit.objective.diagnostics import finish
from dapo_lit.objective.losses import finish_critic
from dapo_lit.objective.tokens import NOTHING, Statistics
from dapo_lit.policy.lora import fingerprint, init_adapters, only_trained
from dapo_lit.policy.reference import Critic, Reference
from dapo_lit.policy.wrap import compiled_graphs
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.records import Group
from dapo_lit.runs.safe_loading import safe_state_types
from dapo_lit.seeds import random_state, restore_random_state
from dapo_lit.step.batch import RolloutStep, TokenBatch
from dapo_lit.step.loss import TokenData
from dapo_lit.step.optimizer import Counters, NonFiniteError, Observer, OptimizerSteps, update_kernel
from dapo_lit.step.scoring import PolicyForward, score, scored_by_first_update
from dapo_lit.step.updates import StepUpdates, step_row
from dapo_lit.switches.algorithm import completion_means, objective

EMPTY_STEP: dict[str, float | None] = {
    "loss/policy": None,
    "optim/grad_norm": None,
    "optim/grad_noise": None,
    "optim/lr": None,
    "optim/bad_updates": 0,
    "time/score_s": 0.0,
    "time/train_s": 0.0,
    "perf/pad_frac": None,
    "perf/balance": None,
    "perf/recompiles": 0,
}
"""Metrics of a step without updates."""

ONE_PROCESS = (
    "trainer.strategy=single is one: set devices=1, or train by `python -m dapo_lit.train trainer=fsdp` "
    "(docs/scaling.md)"
)
NO_MAX_EPOCHS = (-1, 1000)
"""What Lightning makes of a `max_epochs` that was not given, with `max_steps` and without."""

MAX_BAD_UPDATES = 10
"""The run ends after so many consecutive updates with a non-finite loss or gradient: one is bad luck, ten a policy that
is lost."""


class DAPOModule(LightningModule):
    """Holds the models, the objective and the counters of a run.

    `policy`, a PreTrainedModel, is made by `configure_model`, or where it is first asked for.

    config: of the whole run; the mapping in a checkpoint as well.
    build_policy: makes the model; called once, in `configure_model`, so that nothing heavy happens before the
        strategy exists. None: the policy of the trainer's data module, or else of the config.
    ranks: the processes that train together.
    fill: loads the shards of a sharded policy that was built without weights.
    """

    policy: Any

    def __init__(
        self,
        config: Config | Mapping[str, Any],
        build_policy: Callable[[], PreTrainedModel] | None = None,
        ranks: Ranks | None = None,
        fill: Fill | None = None,
    ) -> None:
        super().__init__()
        # The number of optimiser steps in a training_step is not known to Lightning.
        self.automatic_optimization = False
        config = config if isinstance(config, Config) else parse(with_defaults(config))
        self.config = config
        # As plain values: loading a checkpoint must not import what it names.
        self.save_hyperparameters({"config": config.model_dump(mode="json")})
        self.build_policy = build_policy or self._policy_of_parts
        self.ranks = ranks or Ranks()
        self.fill = fill
        self.objective = objective(config.algorithm, config.task.max_response_tokens)
        self.critic: Critic | None = None
        self.reference: Reference | None = None
        self.observer: Observer | None = None
        self.counters = Counters()
        self.policy_version = 0
        self.bad_updates_in_a_row = 0
        self.entropy_coefficient = config.algorithm.entropy.bonus
        """What a controller of the entropy bonus remembers; the bonus in effect is the objective's."""
        self.has_compiled = False
        """This process has made the updates of a step, and with them all graphs that it should need."""
        self.step_metrics: dict[str, float | None] = {}
        """Metrics of the last step's updates."""
        self.row: dict[str, Any] | None = None
        """All metrics of the last whole step; None as soon as they are in metrics.jsonl. A checkpoint that is saved
        because an evaluation failed has them, and the resumed run writes them first."""
        self.logs = True
        """True if metrics go to Lightning, about 1 ms each; False if no callback reads them."""
        self.base_fingerprint: int | None = None
        """Fingerprint of the weights that adapters are added to; None without adapters."""

    def configure_model(self) -> None:
        """Builds the models on the CPU, so that they start alike on every device; Lightning, which calls this under its
        own device, moves them afterwards. Shards are filled on their device."""
        if "policy" not in self._modules:
            models = build_models(self.build_policy(), self.config)
            if self.config.trainer.strategy == "fsdp":
                assert self.device_mesh is not None
                mesh, device = self.device_mesh["data_parallel"], self.trainer.strategy.root_device
                shard_and_fill(models, self.config, mesh, self.fill, device)
            for model in filter(None, (models.policy, models.critic)):
                # After sharding, so that each rank fills its own part of the same values.
                init_adapters(model, self.config.seed)
            self.policy, self.reference, self.critic = models.policy, models.reference, models.critic
            if self.config.policy.lora is not None:
                self.base_fingerprint = fingerprint(models.policy)

    def __getattr__(self, name: str) -> Any:
        # Asked for before `fit`, as a Lightning module's parts may be. Of several processes each would build the whole.
        if name == "policy" and "policy" not in self.__dict__.get("_modules", {"policy": None}):
            if self.config.trainer.strategy != "single":
                raise ConfigError(
                    "module.policy: with trainer.strategy=fsdp its shards are there from configure_model on"
                )
            self.configure_model()
        return super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        # Only while a process is being spawned; a copy within this one is nobody's business.
        if get_spawning_popen() is not None:
            raise ConfigError(f"the trainer's strategy starts several processes; {ONE_PROCESS}")
        state: dict[str, Any] = super().__getstate__()
        return state

    def _policy_of_parts(self) -> PreTrainedModel:
        parts = getattr(getattr(self._trainer, "datamodule", None), "parts", None)
        return (parts or RunComponents(self.config)).policy

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Like Lightning's, but nothing that a checkpoint names is executed."""
        with safe_state_types(Path(checkpoint_path)):
            module: Self = super().load_from_checkpoint(checkpoint_path, *args, **{**kwargs, "weights_only": True})
        return module

    def on_fit_start(self) -> None:
        """Refuses what a Trainer of one's own was given and a run would not do, by the name of the argument."""
        trainer, refused = self.trainer, None
        if self.config.trainer.strategy == "single" and trainer.world_size > 1:
            refused = f"the trainer has {trainer.world_size} processes; {ONE_PROCESS}"
        elif trainer.precision != "32-true":
            refused = (
                f"precision={trainer.precision}: sampling, scoring and training have to compute alike; "
                "trainer.sharding.dtype=bfloat16 (in `compose`) is for all of them"
            )
        elif trainer.max_epochs is not None and trainer.max_epochs not in (1, *NO_MAX_EPOCHS):
            refused = (
                f"max_epochs={trainer.max_epochs}: the budget.steps={self.config.budget.steps} rollout steps are one "
                "epoch, and a second one would train on nothing; raise budget.steps"
            )
        elif len(trainer.optimizers) > 1 or trainer.lr_scheduler_configs:
            refused = (
                "configure_optimizers of your own returns more than one optimizer, or a schedule: give one optimizer, "
                "whose rates stay yours; set them in on_train_batch_start"
            )
        elif (data := getattr(trainer.datamodule, "config", None)) is None:
            refused = "fit needs a RolloutDataModule: its batches are rollout steps, sampled with the current weights"
        elif differing := differences(identity(self.config.model_dump()), identity(data.model_dump())):
            key, (own, other) = next(iter(differing.items()))
            refused = (
                f"DAPOModule and RolloutDataModule have different configs ({', '.join(differing)}; {key} is {own} and "
                f"{other}): give both the same"
            )
        elif self.critic is not None and not (_is_own(trainer) or _marks_critic(trainer)):
            refused = "configure_optimizers of your own: mark the value model's group with critic=True"
        if refused:
            raise ConfigError(refused)

    def on_train_epoch_end(self) -> None:
        """Ends the run: without max_epochs Lightning would start a thousand empty epochs."""
        self.trainer.should_stop = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        settings = self.config.algorithm.optimizer
        # One group for the whole policy: weight decay falls on norms and biases too, as in verl.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.policy.parameters() if p.requires_grad], "lr_factor": 1.0}
        ]
        if self.critic is not None:
            assert self.config.algorithm.critic is not None
            # One schedule for both: the critic's rate is a multiple of the policy's.
            factor = self.config.algorithm.critic.lr / settings.lr
            groups.append({"params": [p for p in self.critic.parameters() if p.requires_grad], "lr_factor": factor})
        return torch.optim.AdamW(
            groups,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            **update_kernel({parameter.device.type for group in groups for parameter in group["params"]}),
        )

    def training_step(self, batch: RolloutStep, batch_idx: int) -> None:
        """All updates of one rollout step; leaves and logs its metrics."""
        self.make_updates(batch)
        seconds = time.perf_counter() - batch.started
        row = step_row(batch, self.step_metrics, seconds, self.device, self.ranks)
        self.row = row
        # After the updates: an exception during them must leave these counters at the last whole step.
        self.counters.tokens_generated += batch.collected.tokens_generated
        self.counters.wall_s += seconds
        self.counters.step = batch.step  # last: this makes it the last whole step
        self._log_row(self.counters.state_dict() | row)

    def validation_step(self, batch: tuple[str, bool], batch_idx: int) -> None:
        """Makes and logs an evaluation of the data module."""
        label, final = batch
        self._log_row(self.trainer.datamodule.validate(label, final).metrics(label))

    def test_step(self, batch: tuple[str, bool], batch_idx: int) -> None:
        """Logs an evaluation as `trainer.test` asks for it: with `evaluation.final_samples` responses."""
        self.validation_step(batch, batch_idx)

    def _log_row(self, row: Mapping[str, Any]) -> None:
        """Hands metrics to Lightning; what there was nothing to measure for is left out."""
        if self._trainer is not None and self.logs:
            self.log_dict({key: float(value) for key, value in row.items() if value is not None}, batch_size=1)

    def make_updates(self, batch: RolloutStep) -> None:
        """All updates of one rollout step; leaves their metrics in `step_metrics`."""
        # Lightning may fetch a batch ahead; its samples would be a step older than anything says.
        if batch.policy_version != self.policy_version:
            raise RuntimeError(
                f"step {batch.step} was sampled with weights {batch.policy_version}, the policy has "
                f"{self.policy_version}; the loader fetched ahead"
            )
        if batch.tokens is None:  # no group to learn from: no update
            self.step_metrics = finish(NOTHING) | finish_critic(NOTHING) | EMPTY_STEP
            self._control_entropy()
            return
        self.policy.eval()  # no dropout: the ratio must be 1 before the first update
        started, compiling = time.perf_counter(), self.policy_forward.compiles
        graphs = compiled_graphs() if compiling else 0
        later = scored_by_first_update(self.config, self.objective, batch.tokens, batch.step, self.ranks.size)
        tokens, statistics = score(self.policy_forward, self.objective, batch.tokens, later)
        tokens = self.objective.credit(batch.tokens, tokens)
        assert tokens.advantages is not None
        note_advantages(batch.collected.accepted, completion_means(tokens.advantages, batch.tokens))
        scored = time.perf_counter()
        updates = self.step_updates(batch.step, batch.tokens, tokens, statistics)
        updates.run()
        self.bad_updates_in_a_row = updates.steps.bad_updates_in_a_row
        if self.reference:
            self.reference.release_memory()
        trained = time.perf_counter()
        self.policy_version += 1
        again = compiled_graphs() - graphs if compiling and self.has_compiled else 0
        self.has_compiled = True
        self.step_metrics = updates.metrics() | {
            "time/score_s": scored - started,
            "time/train_s": trained - scored,
            "perf/recompiles": again,
        }
        self._control_entropy()

    def _control_entropy(self) -> None:
        """Logs the bonus that this step had, and sets that of the next one."""
        if self.objective.entropy_control is None:
            return
        # Of all ranks, so that each of them goes on with the same bonus.
        entropy = self.step_metrics["policy/entropy"]
        self.step_metrics["policy/entropy_bonus"] = self.objective.entropy_bonus
        if entropy is not None:
            self.entropy_coefficient, bonus = self.objective.entropy_control(self.entropy_coefficient, entropy)
            self.objective = replace(self.objective, entropy_bonus=bonus)

    @cached_property
    def policy_forward(self) -> PolicyForward:
        """The models and how they are run, for the functions of a step; made once they are on their device."""
        trainer = self.config.trainer
        return PolicyForward(
            policy=self.policy,
            reference=self.reference,
            critic=self.critic,
            ranks=self.ranks,
            device=self.device,
            temperature=self.config.rollout.temperature,
            fp32_head=trainer.fp32_head,
            compiles=compiles(self.config),
            micro_batch_tokens=trainer.tokens_at_once,
            shared_prompt=trainer.shared_prompt,
        )

    def step_updates(self, step: int, batch: TokenBatch, tokens: TokenData, statistics: Statistics) -> StepUpdates:
        """The updates of a step whose tokens are scored and have their advantages."""
        forward, critic = self.policy_forward, self.config.algorithm.critic
        steps = OptimizerSteps(
            self.config,
            self.optimizers(),
            forward,
            self.counters,
            step,
            critic_only=critic is not None and step <= critic.warmup_steps,
            bad_updates_in_a_row=self.bad_updates_in_a_row,
            observer=self.observer,
        )
        backward = self.manual_backward
        return StepUpdates(self.config, self.objective, forward, steps, backward, step, batch, tokens, statistics)

    def on_train_batch_end(self, outputs: Any, batch: RolloutStep, batch_idx: int) -> None:
        """Ends the run after too many skipped updates; the step is on disk, so the run can be read and resumed."""
        skipped = self.bad_updates_in_a_row
        if skipped >= MAX_BAD_UPDATES:
            raise NonFiniteError(
                f"step {batch.step}: {skipped} updates in a row had a loss or gradient that is not finite and were "
                "skipped; lower algorithm.optimizer.lr, or use policy.dtype=float32"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.config.policy.lora is not None:
            checkpoint["state_dict"] = only_trained(self, checkpoint["state_dict"])
        checkpoint["dapo_lit"] = {
            "base_fingerprint": self.base_fingerprint,
            "random": self.ranks.gather(random_state()),
            "counters": self.counters.state_dict(),
            "policy_version": self.policy_version,
            "row": self.row,
            "bad_updates_in_a_row": self.bad_updates_in_a_row,
        }
        if self.objective.entropy_control is not None:
            checkpoint["dapo_lit"]["entropy"] = (self.entropy_coefficient, self.objective.entropy_bonus)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["dapo_lit"]
        random_states = state.get("random", ()) if self._trainer is not None else ()
        if self._trainer is not None:
            # A checkpoint of the last step says that the loop has ended; with a larger budget it has not.
            checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False
        # With another number of ranks there is no state to continue from.
        if len(random_states) == self.ranks.size:
            restore_random_state(random_states[self.ranks.rank])
        if self.config.policy.lora is not None:
            check_adapters(
                self, checkpoint, self.base_fingerprint if self.ranks.rank == 0 else state["base_fingerprint"]
            )
        self.counters.load_state_dict(state["counters"])
        self.policy_version = state["policy_version"]
        self.row = state.get("row")
        self.bad_updates_in_a_row = state["bad_updates_in_a_row"]
        # A fork that turns the control on or off begins with its own config's.
        if self.objective.entropy_control is not None and "entropy" in state:
            self.entropy_coefficient, bonus = state["entropy"]
            self.objective = replace(self.objective, entropy_bonus=bonus)

    @property
    def strict_loading(self) -> bool:
        """A checkpoint of adapters lacks the base weights; `check_adapters` makes sure that it has every adapter."""
        return self.config.policy.lora is None


def _is_own(trainer: Any) -> bool:
    """True if the optimiser is that of `DAPOModule.configure_optimizers`."""
    return all("lr_factor" in group for group in trainer.optimizers[0].param_groups)


def _marks_critic(trainer: Any) -> bool:
    return any(group.get("critic") for group in trainer.optimizers[0].param_groups)


def note_advantages(groups: Sequence[Group], means: Tensor) -> None:
    """Writes [B] mean advantages to the completions of `groups`, for the rollout tables."""
    completions = [completion for group in groups for completion in group.completions]
    for completion, mean in zip(completions, means.tolist(), strict=True):
        completion.advantage = mean
