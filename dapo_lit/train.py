"""Trains one policy: `python -m dapo_lit.train +experiment=dapo`; several with `-m`. `--help` lists the groups.

Prints a table of the policy before and after, and the paths of the run and its page.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.command_text import command
from ablations.errors import HeldError, UserError
from ablations.files.atomic import write_text
from ablations.files.claim import claimed, holder
from ablations.files.layout import CHECKPOINTS, DONE, RECORD, TABLES
from ablations.files.metrics_file import last_step, read_metrics
from ablations.files.run_manifest import lost_files
from ablations.screen import StatusLine
from ablations.texts import read_text
from dapo_lit import model_worker
from dapo_lit.callable_module import make_callable
from dapo_lit.cli.command import attempt, compose_run, exit_code_of, run_command, silence_libraries
from dapo_lit.cli.jobs import arm_of
from dapo_lit.config import Config, ConfigError
from dapo_lit.data.templates import agreed_template
from dapo_lit.preflight.files import check_files
from dapo_lit.preflight.machine import check_machine
from dapo_lit.preflight.weights import check_weights
from dapo_lit.runs.preemption import end_after, name_rank_of_srun, requeued_after_notice
from dapo_lit.runs.wandb_checks import check_wandb

if TYPE_CHECKING:
    from ablations.report.run_page import RunPage
    from dapo_lit.build.components import RunComponents
    from dapo_lit.cli.study_launch import Sweep
    from dapo_lit.cli.workers import Cell
    from dapo_lit.lit.processes import RunStart
    from dapo_lit.runs.loggers import Loggers
    from dapo_lit.runs.run_folder import RunFolder


def train(config: Config, overrides: list[str]) -> None:
    """Runs or resumes one training; does nothing if it is done or if another process is running it.

    Raises ConfigError: it cannot work on this machine, or a check before the first step refuses it.
    Raises HeldError: another process is running it, and resume is not auto.
    Raises ExhaustedError: it has ended and learned nothing, or skipped most updates. An arm of a study prints the
    reason only.
    Raises SystemExit: with code 0, after the checkpoint, if the process was asked to stop.
    """
    agreed_template(config.task.template, config.reward.extraction)  # before the seconds that torch takes
    if config.trainer.strategy != "single":
        name_rank_of_srun()
    checked_early(config)
    if config.study is None and os.environ.get("RANK", "0") == "0":
        check_wandb(config.logger)
    # A study prints its own first line; nothing to do, and no table, where this run is finished.
    opened = config.preflight and config.study is None and os.environ.get("RANK", "0") == "0"
    opened = opened and not (config.resume == "auto" and (config.folder(arm_of(config)) / DONE).is_file())
    if opened:
        check_weights(config)
    if config.policy.path:
        model_worker.start()  # what it imports takes as long as torch
    import torch

    from dapo_lit.cli.run_summary import mostly_skipped, nothing_learned
    from dapo_lit.lit.processes import RunStart, joined
    from dapo_lit.rollout.collect import ExhaustedError
    from dapo_lit.runs.run_folder import run_path

    silence_libraries()
    config, sizes = sized(config)
    with joined(config.trainer) as ranks:
        StatusLine.enabled = config.logger.progress != "none" and ranks.rank == 0
        torch.set_num_threads(config.trainer.threads)
        torch.set_float32_matmul_precision("high" if config.trainer.tf32 else "highest")
        if sizes and len(set(ranks.gather(sizes))) > 1:
            raise ConfigError(f"the GPUs of this run have different sizes ({sizes}); give numbers instead of auto")
        run_start = RunStart(ranks)
        if sizes and ranks.rank == 0:
            print(sizes, flush=True)
        if ranks.rank > 0:
            follow(config, run_start)
            return
        try:
            train_first(config, overrides, run_start, opened)
        finally:
            run_start.broadcast(None)  # nothing to do, or an error: the other ranks must not wait
    path = run_path(config, arm_of(config))  # only now: an error inside would look like a lost rank to the others
    if not (path / DONE).is_file():
        return
    algorithm = config.algorithm
    updates = algorithm.num_prompts // algorithm.minibatch_prompts * algorithm.epochs
    if reason := mostly_skipped(path, updates) or nothing_learned(path, config.task.label):
        if config.study is None:
            raise ExhaustedError(reason)
        print(f"warning: {reason}")


def sized(config: Config) -> tuple[Config, str]:
    """The config with what its `auto` are on this machine, and a line that says so.

    Before the processes have a group: the simulation needs one of its own. Several must choose alike, so that only the
    size of their GPUs counts there, and not what is free on each.
    """
    if not config.sized_by_gpu:
        return config, ""
    import torch

    from dapo_lit.build.models import uses_gpu
    from dapo_lit.forecast.fitting import fitted
    from dapo_lit.preflight.machine import check_devices

    trainer, memory = config.trainer, None
    if uses_gpu(trainer):
        check_devices(trainer, torch.cuda.device_count())
        if trainer.devices * trainer.num_nodes > 1:
            memory = torch.cuda.get_device_properties(0).total_memory
        else:
            memory, _ = torch.cuda.mem_get_info()
    fit = fitted(config, memory)
    return fit.config, fit.words


def checked_early(config: Config) -> None:
    """Raises ConfigError or DataError for what config, machine and small data files show without torch."""
    # Here and not in the schema: a policy of another trainer may be read, evaluated and exported in it.
    if config.compute_dtype == "float16":
        key = "trainer.sharding.dtype" if config.trainer.sharding.dtype else "policy.dtype"
        raise ConfigError(
            f"{key}=float16: training in it would lose the gradient. Loss is divided by the tokens of a mini-batch; "
            "much of it is then below 6e-8, float16's smallest number, and nothing here scales it up. Use bfloat16"
        )
    check_machine(config)
    check_files(config.task, config.reward)


def check_study(configs: Iterable[Config], arms: Iterable[Config] = ()) -> None:
    """Tries out the first cell of a study that is not done yet, after the algorithm of each arm.

    Raises ConfigError, DataError, OSError: with what to do.
    """
    import torch

    from dapo_lit.build.components import RunComponents
    from dapo_lit.cli.same_inputs import check_same_inputs, prompt_day
    from dapo_lit.cli.study_plan import check_base, packed_cell
    from dapo_lit.preflight.training import check_run
    from dapo_lit.runs.run_folder import is_done, run_path
    from dapo_lit.switches.algorithm import check_algorithm

    silence_libraries()
    for config in arms:
        check_algorithm(config)
    for config in configs:
        arm = arm_of(config)
        if not is_done(config, arm) and not packed_cell(config, arm):
            config, _ = sized(config)
            torch.set_num_threads(config.trainer.threads)
            path = run_path(config, arm)
            parts = RunComponents(config, day=prompt_day(config, path))
            with parts.verifier:
                check_run(parts)
                check_same_inputs(config, path, inputs_of(parts))
            check_base(config, arm, start_of(parts))
            return


INHERITED = (
    "dapo_lit.lit.fit", "dapo_lit.cli.run_summary", "dapo_lit.cli.same_inputs", "dapo_lit.engines.torch_engine.engine",
    "ablations.report.run_page", "transformers.models.qwen2.modeling_qwen2",
)  # fmt: skip
"""What the cells of a study import: once, before they are forked. None of it starts a thread, which a fork would lose;
Qwen2 is the architecture of the base policies that are made here."""


def run_study(study: Sweep, run: Callable[[Config, list[str]], None] = train) -> int:
    """Registers a study and runs its cells, several at a time, look by look; returns the largest of their exit codes.

    Of a multirun the first cell is tried out before, in a process of its own, and what the cells found is printed at
    the end.
    """
    if code := exit_code_of(lambda: checked_early(study.config)):
        return code
    for module in INHERITED:
        import_module(module)
    from ablations.read.packed_cells import read_cells
    from dapo_lit.cli.workers import in_child, run_cells, workers_for

    if len(study.cells) > 1 and (study.config.preflight or study.config.fork):
        configs = (compose_run(study.composed(cell), Config) for cell in study.cells)
        firsts = {cell.arm: cell for cell in reversed(study.cells)}
        arms = (compose_run(study.composed(cell), Config) for cell in firsts.values())
        if code := in_child(lambda: exit_code_of(lambda: check_study(configs, arms))):
            return code
    if code := exit_code_of(study.register):
        return code

    def run_cell(cell: Cell) -> int:
        return attempt(lambda: study.composed(cell), study.overrides(cell), study.multirun, run, Config)[0]

    place = study.config.own_study.packed
    packed = {(one.arm, one.seed) for one in read_cells(Path(place))} if place else set[tuple[str, int]]()

    def share_done(cell: Cell) -> float:
        if (cell.arm, cell.seed) in packed or (study.folder / cell.arm / f"seed_{cell.seed}" / DONE).is_file():
            return 1.0
        fork, last = study.config.fork, study.config.last_step
        first = fork.steps[0] - 1 if fork and fork.steps else 0  # a fork's rows start after the state it continues
        step = last_step(study.folder / cell.arm / f"seed_{cell.seed}")
        return 0.0 if step is None else (step - first) / (last - first)

    code, workers, batches = 0, workers_for(study.config, len(study.cells)), study.batches
    StatusLine.enabled = study.config.logger.progress != "none"
    for batch in batches:
        code = max(code, run_cells(batch, run_cell, workers, study.folder, share_done))
        if batch is not batches[-1] and is_decided(study.config):
            print(f"every registered comparison is decided after seed {batch[-1].seed}", flush=True)
            break
    found = print_findings(study.config) if study.multirun else 0  # also if a cell failed: of those that have ended
    return code or found


def train_first(config: Config, overrides: list[str], run_start: RunStart, opened: bool) -> None:
    """Rank 0: runs one training, which this process claims meanwhile, unless it is done or another process runs it.

    opened: the table of checks has its first row already.
    """
    from dapo_lit.build.components import RunComponents
    from dapo_lit.cli.same_inputs import check_same_inputs, prompt_day
    from dapo_lit.lit.fit import own_callbacks
    from dapo_lit.preflight.training import check_run
    from dapo_lit.runs.loggers import check_loggers
    from dapo_lit.runs.run_folder import check_room, is_done, open_run, run_path

    arm = arm_of(config)
    path = run_path(config, arm)
    if config.study is not None:
        from dapo_lit.cli.study_plan import packed_cell

        if packed := packed_cell(config, arm):
            print(f"{path}: done, packed in {packed}; nothing to do")
            return
    if other := holder(path):
        if config.resume != "auto":
            raise HeldError(f"{path}: {other} is running it; wait for it, or give this run another study_name")
        print(f"{path}: {other} is running it; skipping it")
        return
    if is_done(config, arm):
        print(f"{path} is finished (resume=auto); nothing to do")
        return
    # Everything that can be wrong is checked before an older run is touched: no mistake moves it aside.
    with claimed(path) as owner:
        parts = RunComponents(config, run_start.ranks, prompt_day(config, path))
        check_run(parts, opened)
        inputs = inputs_of(parts)
        check_same_inputs(config, path, inputs)
        has_checkpoint = config.resume and any((path / CHECKPOINTS).glob("step_*.ckpt"))
        if config.study is not None and not has_checkpoint:  # a checkpoint has its own start
            from dapo_lit.cli.study_plan import check_base

            check_base(config, arm, start_of(parts))
        own_callbacks(config, path)
        check_loggers(config, path)
        check_room(path, parts.checkpoint_bytes)
        known = {"inputs": inputs, "prompt_date": parts.day.isoformat(), **described_parts(config)}
        folder = open_run(config, overrides, arm, owner, known)
        for fault in read_metrics(folder.path).faults if folder.resumes else ():
            print(f"warning: {folder.metrics}: {fault}")
        for lost in lost_files(folder.path, *TABLES):
            print(f"warning: {folder.path / lost} since it was written; the run continues without it")
        train_in(folder, config, parts, run_start)


def described_parts(config: Config) -> dict[str, Any]:
    """What run.json says of the code that the config names: a reader of the run does not execute it."""
    from dapo_lit.switches.algorithm import objective
    from dapo_lit.switches.parts import own_metrics, own_technique

    metrics = [metric.recorded for metric in own_metrics(config)]
    own = {path: own_technique(path).recorded for path in config.algorithm.own_techniques}
    return {
        "loss_arguments": sorted(objective(config.algorithm, config.task.max_response_tokens).takes),
        **({"metrics": metrics} if metrics else {}),
        **({"own_techniques": own} if own else {}),
    }


def inputs_of(parts: RunComponents) -> dict[str, str]:
    """The digests of what a run reads, with that of the training state that a fork continues."""
    from dapo_lit.runs.resume import state_digest

    state = state_digest(parts.config)
    return {**parts.inputs, **({"state": state} if state else {})}


def follow(config: Config, run_start: RunStart) -> None:
    """The other ranks: train with rank 0 and write only their shards."""
    from dapo_lit.build.components import RunComponents
    from dapo_lit.lit.fit import fit

    start = run_start.received()
    if start is not None:
        fit(config, RunComponents(config, run_start.ranks, start.day), start, None, run_start.ranks)


def train_in(folder: RunFolder, config: Config, parts: RunComponents, run_start: RunStart) -> None:
    """Trains in an open run folder, and records in run.json how the training ended."""
    from ablations.files.run_manifest import step_of, update_manifest
    from ablations.report.run_page import RunPage
    from dapo_lit.lit.fit import fit
    from dapo_lit.lit.processes import StartPoint
    from dapo_lit.runs.checkpoint_files import newest_good
    from dapo_lit.runs.loggers import Loggers
    from dapo_lit.runs.resume import check_reference, forked_from

    loggers = None
    try:
        saved = folder.path / CHECKPOINTS
        state, origin = (newest_good(saved, run_start.ranks), {}) if folder.resumes else forked_from(config)
        if state:
            continued = Path(config.fork.run) if config.fork else folder.path
            check_reference(continued, config, start_of(parts)["base_weights"])
        start = StartPoint(folder, state, parts.day)
        update_manifest(folder.path, step_of(state.name) if state and folder.resumes else 0)
        run_start.broadcast(start)
        if not folder.resumes:
            folder.write_run(**start_of(parts) | origin)
        page = RunPage(folder.path)
        loggers = Loggers(config, folder, page.row)
        module, stop = fit(config, parts, start, loggers, run_start.ranks)
    except BaseException as error:
        # Lightning turns Stopped into SystemExit.
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        status = "stopped" if isinstance(cause, KeyboardInterrupt) else "failed"
        # It may be another process's run now, or the disk is full: the reason that is reported says so.
        with suppress(HeldError, OSError):
            reason = str(cause) if status == "stopped" else f"{type(cause).__name__}: {cause}"
            folder.write_run(status=status, error=reason)
        with suppress(OSError):
            if loggers:
                loggers.close(exit_code=1)
        if isinstance(cause, OSError):
            folder.check_owner()  # what could not be written belongs to a folder that is no longer there
        if status == "failed":
            raise
        raise with_what_was_kept(cause, folder) from None
    if stop.requested and stop.number == signal.SIGINT:
        loggers.close(exit_code=1)
        folder.write_run(status="stopped", error="")
        stop.hand_over()
        raise with_what_was_kept(KeyboardInterrupt(), folder)
    if stop.requested:
        loggers.close()
        folder.write_run(status="preempted")
        print(f"stopped on request after step {module.counters.step}; continue with resume=true (run: {folder.path})")
        stop.hand_over()
        raise end_after(stop.number)  # ends a multirun too: the process was asked to stop, not only this run
    finish(folder, config, loggers, page)


def with_what_was_kept(cause: BaseException, folder: RunFolder) -> BaseException:
    """What ended a run, with a note on where the same command continues."""
    kept = folder.checkpoints
    further = f"continues from {kept[-1].name}" if kept else "starts again: there is no checkpoint yet"
    cause.add_note(f"the same command with resume=true {further} (run: {folder.path})")
    return cause


def start_of(parts: RunComponents) -> dict[str, str | None]:
    """What run.json says of the weights that a run starts from; None for a policy from elsewhere."""
    base = parts.base
    return {"base_weights": base.weights if base else None, "base_origin": base.origin if base else None}


def finish(folder: RunFolder, config: Config, loggers: Loggers, page: RunPage) -> None:
    """Marks the run as done, writes its page and prints its summary."""
    from dapo_lit.cli.run_summary import print_summary, what_next

    status = folder.read_run()["status"]
    folder.write_run(status="finished" if status == "running" else status)
    write_text(folder.path / DONE, read_text(folder.path / RECORD))
    written = page.write()
    loggers.close()
    print_summary(folder, config)
    print("\n".join(filter(None, (f"run     {folder.path}\npage    {written}", what_next(folder.path)))), flush=True)


def print_findings(config: Config) -> int:
    """Prints what a study found, once its cells have ended; returns 2 if it cannot find anything, else 0."""
    from ablations.report.report import close

    folders = study_folders(config)
    typed = command("report", *map(str, folders))
    try:
        print(close(config.own_study.name, folders, typed))
    except UserError as reason:
        print(f"no findings: {reason}")
        return 2
    return 0


def is_decided(config: Config) -> bool:
    """True if every registered comparison of a study is decided by the cells that have ended."""
    from ablations.report.report import all_decided

    try:
        return all_decided(study_folders(config))
    except UserError:  # no cell has ended yet, or one cannot be read: `print_findings` says so
        return False


def study_folders(config: Config) -> list[Path]:
    packed = config.own_study.packed
    return [Path(config.runs_dir) / config.study_name, *([Path(packed)] if packed else [])]


def main() -> None:
    if not sys.argv[1:]:
        print("the default run, all of DAPO on sums: minutes on a CPU; --help shows what else can be run", flush=True)
    with requeued_after_notice():
        sys.exit(run_command(train, Config, "config", run_study=run_study))


make_callable(__name__)

if __name__ == "__main__":
    main()
