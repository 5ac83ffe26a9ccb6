"""Callbacks: evaluate, log and write after each step, and stop when asked to; save checkpoints.

runs/checkpoint_files.py makes sure that a checkpoint under its final name is complete.
"""

import time
from pathlib import Path
from typing import Any

from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ablations.errors import HeldError
from ablations.files.atomic import remove_empty
from ablations.files.layout import CHECKPOINTS, before_step
from dapo_lit.build.models import uses_gpu
from dapo_lit.config import Config
from dapo_lit.config.algorithm import MAX_EMPTY_STEPS
from dapo_lit.evaluation.sample_store import write_evaluation
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.step_clock import StepClock
from dapo_lit.log import log
from dapo_lit.preflight.idle_settings import FIRST_STEPS, idle_techniques
from dapo_lit.ranks import SINGLE_PROCESS, Ranks, is_raised_by_all
from dapo_lit.rewards.functions import RewardError
from dapo_lit.rollout.collect import ExhaustedError
from dapo_lit.rollout.records import CollectedStep
from dapo_lit.rollout.step_collection import LostSampleError, StopRequestedError
from dapo_lit.runs.checkpoint_files import KEPT, remove, write_checkpoint
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.rollout_table import keeps_rollouts, rollouts_file, write_rollouts
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.step.batch import RolloutStep
from dapo_lit.step.optimizer import NonFiniteError

ALARM_FLOAT32 = 1e-4
"""Nats per token. In float32, trainer and engine agree within 1e-11; weights one step old gave 1e-3 and more."""
ALARM_16_BITS = 1e-2
"""A bfloat16 engine on the same weights gave 1.3e-3 (docs/mismatch.md)."""

RECOMPILED = (
    "step {step}: torch compiled {graphs:g} graphs again. The first step's should serve all later ones; each costs as "
    "long as in that step, and after a few torch runs the function eagerly. The numbers are right, the steps are slow: "
    "set trainer.compile=false if it goes on (TORCH_LOGS=recompiles prints the reason)"
)


class Recorder(Callback):
    """Evaluates when it is due and writes one row per step; step 0 is the policy before training."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        loggers: Loggers | None,
        ranks: Ranks = SINGLE_PROCESS,
        clock: StepClock | None = None,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.clock = clock or StepClock()
        self.folder = folder
        self.loggers = loggers
        self.empty_steps_in_a_row = 0
        self.empty_steps = 0
        self.marks_passed = 0
        """Of evaluation.at_tokens, so far."""
        self.first_rows: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, module: DAPOModule) -> None:
        self.clock.start()
        # Written here, not at the start of the process: the engine's facts are known now.
        selection = trainer.datamodule.selection
        if self.ranks.rank == 0:
            self.folder.write_run(problems=selection.counts, engine=trainer.datamodule.collector.setup.engine.facts)
            log.info("\n".join(selection.lines))
        # A run stopped in its first step has it.
        if module.counters.step == 0 and not self.folder.resumes:
            self._write(trainer.datamodule, module, {}, evaluates=True)
        if module.counters.step and self._is_spent(module):
            # Whether the last row is written or not.
            trainer.should_stop = True
        if module.row is not None:
            self._end(trainer, module)
            self._write_last(trainer, module)

    def on_train_batch_end(
        self, trainer: Trainer, module: DAPOModule, outputs: Any, batch: RolloutStep, batch_idx: int
    ) -> None:
        collected = batch.collected
        assert module.row is not None
        self._count_empty(batch)
        row = module.row
        if self.ranks.rank == 0 and batch.tokens is None and self.empty_steps == 1:
            log.warning(f"step {batch.step} had no group to learn from (docs/troubleshooting.md)")
        if self.ranks.rank == 0 and (alarm := mismatch_alarm(self.config, batch.step, row.get("mismatch/kl"))):
            log.warning(alarm)
        if self.ranks.rank == 0 and (again := row.get("perf/recompiles")):
            log.warning(RECOMPILED.format(step=batch.step, graphs=again))
        if keeps_rollouts(self.config, batch.step) and self.ranks.rank == 0:
            with self.clock.during("time/record_s"):
                self.folder.check_owner()
                rollouts = write_rollouts(self.folder.path, collected, trainer.datamodule.parts.decode)
                if self.loggers is not None:
                    self.loggers.rollouts(batch.step, rollouts)
        if self.ranks.rank == 0 and batch.step <= FIRST_STEPS:
            self.first_rows.append({"step": batch.step} | row)
            for line in idle_techniques(self.config.algorithm, self.first_rows) if batch.step == FIRST_STEPS else ():
                log.warning(line)
        self._end(trainer, module)
        self._write_last(trainer, module, sampled_ahead=batch.waited_s is not None)
        if any(group.missing for group in collected.counted):
            self._report_missing(collected, trainer.datamodule.parts.verifier.first_error)

    def _report_missing(self, collected: CollectedStep, first: str | None) -> None:
        """Prints and stores the first failure in scoring; raises RewardError if too many completions have none.

        A single one never ends a run: in a small step it would be more than a few per cent.
        """
        # Only groups of this step: carried ones were reported by theirs.
        missing = [c.score for g in collected.counted for c in g.missing]
        total = len(missing) + sum(len(g.completions) for g in collected.counted)
        errors = [score.error for score in missing if score.error is not None]
        reward, late = self.config.reward, len(missing) - len(errors)
        first = first or next(iter(errors), f"later than reward.deadline_s={reward.deadline_s:g}")
        file, limit = self.folder.path / "reward_errors.txt", reward.max_error_frac
        if self.ranks.rank == 0 and not file.exists():
            file.write_text(f"step {collected.step}\n{first}\n", encoding="utf-8")
            log.warning(f"scoring failed in step {collected.step}; the first error is kept in {file}:\n{first}")
        if len(missing) > max(1, limit * total):
            turns = self.config.turns
            what, key = "reward function", f"reward.deadline_s={reward.deadline_s:g}"
            if turns.environment and first.startswith(f"{turns.environment}: "):
                what, key = f"environment {turns.environment}", f"turns.deadline_s={turns.deadline_s:g}"
            raise RewardError(
                f"{len(missing)} of the {total} completions of step {collected.step} have no verdict ({late} late, "
                f"{len(errors)} failed): more than reward.max_error_frac={limit:g}. Fix the {what}, or raise {key} if "
                f"it only needs more time. The first one ({file}):\n{first}"
            )

    def _count_empty(self, batch: RolloutStep) -> None:
        empty = batch.tokens is None
        self.empty_steps += empty
        self.empty_steps_in_a_row = self.empty_steps_in_a_row + 1 if empty else 0
        if self.empty_steps_in_a_row >= MAX_EMPTY_STEPS:
            correct = [c.correct for g in batch.collected.generated for c in g.completions]
            if self.ranks.rank > 0:
                return
            self.folder.write_run(status="solved" if correct and all(correct) else "exhausted")

    def _end(self, trainer: Trainer, module: DAPOModule) -> None:
        """Stops the trainer if the budget is spent or no group is left to learn from."""
        if self._is_spent(module) or self.empty_steps_in_a_row >= MAX_EMPTY_STEPS:
            trainer.should_stop = True

    def _is_spent(self, module: DAPOModule) -> bool:
        budget, counters = self.config.budget, module.counters
        spent = counters.step >= self.config.last_step or (
            budget.tokens_generated is not None and counters.tokens_generated >= budget.tokens_generated
        )
        return any(self.ranks.gather(spent))  # all ranks must stop after the same step

    def _write_last(self, trainer: Trainer, module: DAPOModule, sampled_ahead: bool = False) -> None:
        assert module.row is not None
        row = module.row | {"sampling/empty_steps": self.empty_steps}
        every, marks = self.config.evaluation.every, self.config.evaluation.at_tokens
        # Rank 0 decides for all, which evaluate together.
        tokens = self.ranks.gather(module.counters.tokens_generated)[0] if marks else 0
        passed = sum(tokens >= mark for mark in marks)
        # As the last evaluation is, which a mark's is compared with.
        final = trainer.should_stop or passed > self.marks_passed
        # Always at the end, so that every run has a final value whatever `every` is.
        due = final or bool(every and module.counters.step % every == 0)
        # A fork is compared on its rollouts.
        evaluates = due and self.config.fork is None
        self._write(trainer.datamodule, module, row, evaluates, final=final, sampled_ahead=sampled_ahead)
        # Not before: a run that ends in the evaluation makes it when it is resumed.
        self.marks_passed = passed
        module.row = None

    def _write(
        self,
        datamodule: RolloutDataModule,
        module: DAPOModule,
        row: dict[str, Any],
        evaluates: bool,
        final: bool = False,
        sampled_ahead: bool = False,
    ) -> None:
        start = time.perf_counter()
        for label, evaluation in (datamodule.evaluations(final) if evaluates else {}).items():
            row |= evaluation.metrics(label) | {"time/evaluate_s": time.perf_counter() - start}
            if self.ranks.rank == 0:
                self.folder.check_owner()
                write_evaluation(self.folder.path, label, module.counters.step, evaluation)
        if self.loggers is None:
            return
        row = module.counters.state_dict() | row | self.clock.row_times(row, sampled_ahead)
        with self.clock.during("time/record_s"):
            self.folder.append_row(row)
            self.loggers.row(row)
        with self.clock.during("time/page_s"):
            self.loggers.page(row)

    def state_dict(self) -> dict[str, Any]:
        return {
            "empty_steps_in_a_row": self.empty_steps_in_a_row,
            "empty_steps": self.empty_steps,
            "marks_passed": self.marks_passed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.empty_steps_in_a_row, self.empty_steps = state["empty_steps_in_a_row"], state["empty_steps"]
        self.marks_passed = state.get("marks_passed", 0)


def mismatch_alarm(config: Config, step: int, kl: float | None) -> str | None:
    """A warning if trainer and engine are further apart than rounding takes them; None if they are not."""
    # In one dtype on both sides the difference is rounding of sums; in two it is that of every weight.
    dtypes = {config.compute_dtype, config.engine_dtype(uses_gpu(config.trainer))}
    threshold = ALARM_FLOAT32 if dtypes == {"float32"} else ALARM_16_BITS
    if kl is None or kl <= threshold:
        return None
    return (
        f"step {step}: mismatch/kl is {kl:.3g} nats a token, above {threshold:g}: the engine "
        "did not sample from the policy's weights (a stale or broken sync), or its precision is too low; "
        "docs/mismatch.md"
    )


TOGETHER = (StopRequestedError, NonFiniteError, ExhaustedError, LostSampleError, RewardError)
"""Exceptions that all ranks raise at the same point, as those are that are marked so: they can save together."""


class Checkpoints(Checkpoint):
    """Saves the whole training state every `trainer.checkpoint_every` steps, at the end, and on an exception.

    A Checkpoint to Lightning, which puts these last: the state of a step has that of every callback after it.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        stop: StopSignal,
        ranks: Ranks = SINGLE_PROCESS,
        clock: StepClock | None = None,
    ) -> None:
        self.ranks = ranks
        self.clock = clock or StepClock()
        self.config = config
        self.every = config.trainer.checkpoint_every
        self.record = config.replay.record
        self.folder = folder
        self.stop = stop
        self.trains = False

    def on_train_start(self, trainer: Trainer, module: DAPOModule) -> None:
        self.save_for_replay(trainer, module.counters.step + 1)
        self.trains = True

    def on_train_batch_end(
        self, trainer: Trainer, module: DAPOModule, outputs: Any, batch: RolloutStep, batch_idx: int
    ) -> None:
        # A signal reaches the ranks at different times, and the flag may still change: the gathered value decides.
        stops = any(self.ranks.gather(self.stop.requested))
        # Nobody continues a fork of a few steps.
        ends = trainer.should_stop and self.config.fork is None
        if batch.step % self.every == 0 or ends or stops:
            self.save(trainer, batch.step)
        if not trainer.should_stop:
            self.save_for_replay(trainer, batch.step + 1)
        if stops:
            self.stop.requested = trainer.should_stop = True

    def on_exception(self, trainer: Trainer, module: DAPOModule, exception: BaseException) -> None:
        """Saves the state after the last whole step, where the state is that.

        During a step's updates it is not: some are made, and a resumed run would never make the others. Nor is it
        before the step's rollouts are written, which no checkpoint holds.
        """
        if self.ranks.size > 1 and not (isinstance(exception, TOGETHER) or is_raised_by_all(exception)):
            return  # saving needs all ranks, and the others are somewhere else
        if not self.trains:
            return  # everything is on disk already
        step, datamodule = module.counters.step, trainer.datamodule
        has_rollouts = self.ranks.rank == 0 and step > 0 and keeps_rollouts(self.config, step)
        is_whole = datamodule.next_step == step + 1
        is_whole &= not has_rollouts or rollouts_file(self.folder.path, step).is_file()
        if is_whole and step and not isinstance(exception, (OSError, HeldError)):
            self.save(trainer, step)
        if not is_whole and self.ranks.rank == 0 and not isinstance(exception, KeyboardInterrupt):  # train.py says so
            kept = self.folder.checkpoints
            after = f"continues from {kept[-1].name}" if kept else "starts again: there is no checkpoint yet"
            log.info(f"step {datamodule.next_step - 1} ended before it was complete; a resumed run {after}")

    def save(self, trainer: Trainer, step: int) -> None:
        final = self.folder.path / CHECKPOINTS / f"step_{step:06d}.ckpt"
        if not self.ranks.first(final.exists):
            self._write(trainer, final, KEPT)

    def save_for_replay(self, trainer: Trainer, step: int) -> None:
        """Saves the state before `step` if that step is to be recorded; a replay continues from it."""
        final = before_step(self.folder.path, step)
        if step in self.record and not self.ranks.first(final.exists):
            final.parent.mkdir(exist_ok=True)
            self._write(trainer, final, kept=None)

    def _write(self, trainer: Trainer, final: Path, kept: int | None) -> None:
        with self.clock.during("time/checkpoint_s"):
            self._write_state(trainer, final, kept)

    def _write_state(self, trainer: Trainer, final: Path, kept: int | None) -> None:
        if self.ranks.rank == 0:
            self.folder.check_owner()

        def write(draft: Path) -> None:
            trainer.save_checkpoint(draft, weights_only=False)
            if self.ranks.size > 1:
                return
            try:
                self.folder.check_owner()
            except HeldError:  # Lightning makes a folder that was moved away anew
                remove(draft)
                remove_empty((draft.parent, self.folder.path))
                raise

        write_checkpoint(final, write, self.ranks, kept)
