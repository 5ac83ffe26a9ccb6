"""The config of a training run, with the checks that need more than one group."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from ablations.border import FolderNames
from dapo_lit.config.algorithm import Algorithm
from dapo_lit.config.sections import (
    BOOKKEEPING,
    EXECUTION,
    HORIZON,
    SCIENCE,
    Budget,
    Evaluation,
    Free,
    Logger,
    Policy,
    Replay,
    Reward,
    Rollout,
    Section,
    Task,
    Turns,
    without_secrets,
)
from dapo_lit.config.study import Fork, Regime, Study
from dapo_lit.config.trainer import Trainer

COMPILING_PAYS = 100
"""Rollout steps from which `trainer.compile=auto` compiles. On one H100 it saves 59 ms of an update of 0.5B parameters
and 16k tokens (docs/performance.md): at 16 updates a step, its minute is back after some 60 steps."""


class Config(Section):
    seed: Annotated[int, Field(ge=0, lt=2**32), SCIENCE]
    """Seed of problem order, sampling noise and mini-batch shuffling; in a study also of the base policy."""
    study_name: Annotated[FolderNames, BOOKKEEPING]
    """The first folder of a run: runs/<study_name>/<arm>/seed_<seed>."""
    runs_dir: Annotated[str, BOOKKEEPING]
    """The folder of all runs."""
    resume: Annotated[Literal["auto"] | bool, BOOKKEEPING]
    """false: start, moving an older run aside; true: continue the run; auto: continue or start, skip if done."""
    preflight: Annotated[bool, BOOKKEEPING]
    """Try out reward, policy and tokenizer before the first step, and print what was found."""
    study: Annotated[Study | None, BOOKKEEPING]
    """The study that this run is a cell of; null: none."""
    regime: Annotated[Regime | None, BOOKKEEPING]
    """The regime that the run's settings belong to, chosen by +regime=NAME; null: no regime was chosen."""
    fork: Annotated[Fork | None, SCIENCE]
    """The run and step that this run continues from (+study=fork); null: it starts from the policy."""
    algorithm: Annotated[Algorithm, SCIENCE]
    policy: Annotated[Policy, SCIENCE]
    task: Annotated[Task, SCIENCE]
    turns: Annotated[Turns, SCIENCE]
    reward: Annotated[Reward, SCIENCE]
    rollout: Annotated[Rollout, SCIENCE]
    trainer: Annotated[Trainer, EXECUTION]
    budget: Annotated[Budget, HORIZON]
    logger: Annotated[Logger, BOOKKEEPING]
    callbacks: Annotated[dict[str, Free], BOOKKEEPING, PlainSerializer(without_secrets, when_used="json")]
    """Callbacks of Lightning's or of your own, by name: `_target_` and its arguments."""
    evaluation: Annotated[Evaluation, SCIENCE]
    replay: Annotated[Replay, BOOKKEEPING]

    @property
    def own_study(self) -> Study:
        """The section `study` of a run that is a cell of one."""
        assert self.study is not None
        return self.study

    @property
    def compute_dtype(self) -> str:
        """The dtype of forward and backward, which the weights may be stored wider than."""
        return self.trainer.sharding.dtype or self.policy.dtype

    def engine_dtype(self, on_gpu: bool) -> str:
        """The dtype of the engine's weights and activations, with a trainer on a GPU or not."""
        vllm = self.rollout.engine == "vllm"
        if vllm and self.rollout.vllm.dtype != "auto":
            return self.rollout.vllm.dtype
        return "bfloat16" if vllm and on_gpu and self.compute_dtype == "float32" else self.compute_dtype

    def compiles(self, on_gpu: bool) -> bool:
        """Whether layers and the head's arithmetic are compiled."""
        setting = self.trainer.compile
        return on_gpu and self.budget.steps >= COMPILING_PAYS if setting == "auto" else setting

    @property
    def sized_by_gpu(self) -> list[str]:
        """The keys that are `auto` and that the size of a GPU decides."""
        values = {
            "trainer.micro_batch_tokens": self.trainer.micro_batch_tokens,
            "trainer.activation_checkpointing": self.trainer.activation_checkpointing,
            "rollout.vllm.kv_cache_gb": self.rollout.vllm.kv_cache_gb,
        }
        return [key for key, value in values.items() if value == "auto"]

    @property
    def last_step(self) -> int:
        """The step after which the run ends at the latest."""
        return self.fork.steps[0] + self.fork.horizon - 1 if self.fork and self.fork.steps else self.budget.steps

    @property
    def replicate(self) -> int:
        """The number in the name of the run's folder: its seed; of a fork, which keeps that of its run, its noise."""
        return self.rollout.noise_stream if self.fork else self.seed

    def folder(self, arm: str) -> Path:
        """The folder of the run under these switches."""
        return Path(self.runs_dir) / self.study_name / arm / f"seed_{self.replicate}"

    def faults(self) -> Iterator[str]:
        if self.last_step > self.budget.steps:
            yield (
                f"fork.horizon goes to step {self.last_step}, which is after the run's last, "
                f"budget.steps={self.budget.steps}; take {self.last_step - self.budget.steps} fewer"
            )
        if self.fork and self.study and self.study.pilot:
            yield "study.pilot: a fork needs no commit and is no pilot; leave it out"
        cache, limit = self.algorithm.overlong.cache_tokens, self.task.max_response_tokens
        if cache >= limit:
            yield (
                f"algorithm.overlong.cache_tokens ({cache}) must be below task.max_response_tokens ({limit}), "
                "or every response is punished"
            )
        if late := [step for step in self.replay.record if step > self.budget.steps]:
            yield f"replay.record: step {late[0]} is after the last one, budget.steps={self.budget.steps}"
        if self.task.name == "file" and not self.task.path:
            yield "task.path is needed: a JSONL, Parquet or CSV file with `problem` and `answer`, or a hub id"
        if self.regime is not None and (self.task.name == "file" or self.policy.path is not None):
            own = "task.name=file" if self.task.name == "file" else f"policy.path={self.policy.path}"
            yield (
                f"{own} does not fit regime={self.regime.name}, which is a task with base policies of its own; "
                "add ~regime to leave the regime out"
            )
        if self.trainer.micro_batch_tokens == "auto" and self.algorithm.token_level_denominator == "microbatch":
            yield (
                "trainer.micro_batch_tokens=auto would let the machine decide the gradient, which depends on the "
                "micro-batch under algorithm.token_level_denominator=microbatch; give a number"
            )
        yield from self._faults_of_turns()
        yield from self._faults_of_processes()

    def _faults_of_turns(self) -> Iterator[str]:
        """What episodes with an environment do not do yet, by name."""
        if self.turns.environment is None:
            return
        if self.evaluation.benchmarks:
            yield (
                f"turns.environment={self.turns.environment} answers in the task's problems, and the protocol of "
                "evaluation.benchmarks has one turn: leave them out; task.eval_path may name a file of such problems"
            )

    def _faults_of_processes(self) -> Iterator[str]:
        """Settings of engine and trainer that cannot share processes."""
        vllm = self.rollout.vllm
        beside = self.rollout.engine == "vllm" and vllm.placement != "server"
        several = self.trainer.devices * self.trainer.num_nodes > 1
        own = "give the engine servers of its own (rollout.vllm.placement=server)"
        if beside and vllm.placement == "process" and several:
            yield f"rollout.vllm.placement=process is for one process that trains; leave it at auto, or {own}"
        in_trainer = vllm.placement == "colocated" or (vllm.placement == "auto" and several)
        if beside and in_trainer and vllm.deterministic:
            yield (
                "rollout.vllm.deterministic replaces matrix products in the whole process, in training too; set "
                f"rollout.vllm.placement=process, or {own}"
            )
        shares = beside and vllm.tensor_parallel > 1
        if shares and self.trainer.devices % vllm.tensor_parallel:
            yield (
                f"rollout.vllm.tensor_parallel ({vllm.tensor_parallel}) does not divide the {self.trainer.devices} "
                f"processes of a machine (trainer.devices): neighbouring ranks share an engine"
            )
        ahead, sampling = self.rollout.steps_ahead, self.algorithm.dynamic_sampling
        excluded = {
            "rollout.vllm.sleep": (beside and vllm.sleep, f"an engine that samples meanwhile cannot sleep; {own}"),
            "rollout.vllm.tensor_parallel > 1": (shares, f"the exchanges of its ranks collide with training; {own}"),
            "replay.record": (self.replay.record, "the state before a step has its rollouts already"),
        }
        for name, (asked, reason) in excluded.items() if ahead else ():
            if asked:
                yield f"rollout.steps_ahead and {name} exclude each other: {reason}"
        keeps = sampling.carry_over != "none" or sampling.on_exhausted == "replay"
        if keeps and 0 < ahead >= sampling.max_staleness:
            yield (
                f"algorithm.dynamic_sampling.max_staleness ({sampling.max_staleness}) drops every group that is "
                f"carried over or replayed: rollout.steps_ahead={ahead} makes it {ahead + 1} steps old; set that"
            )
