"""Trains one policy: `python -m dapo_lit.train +experiment=dapo`; several with `-m`. `--help` lists the groups.

Prints a table of the policy before and after, the path of the run and of its figure.
"""

import logging
import sys
import warnings
from pathlib import Path

import pandas as pd
import torch
from lightning import Trainer
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from dapo_lit.cli.cell_claim import held, packed_cell
from dapo_lit.cli.command import run_command
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.families import switches_of
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.checkpoints import Checkpoints
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.processes import Opening, Start, joined
from dapo_lit.lit.strategy import trainer_arguments
from dapo_lit.ranks import Ranks
from dapo_lit.recipe.cpu_threads import fastest, is_measured, measure, recorded_threads, with_threads
from dapo_lit.recipe.idle_settings import idle_settings
from dapo_lit.recipe.parts import Parts
from dapo_lit.recipe.switches import objective
from dapo_lit.rollout.step_collection import StopRequestedError
from dapo_lit.runs.checkpoint_files import newest_good
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.preemption import StopSignal, requeue
from dapo_lit.runs.run_folder import RunFolder, is_done, open_run, run_path, write_atomically
from dapo_lit.study.designs import arm_name
from dapo_lit.study.figures.curve_figures import plot_run
from dapo_lit.study.read.metrics_file import read_metrics

FEW_QUESTIONS = 8
"""Up to so many held-out problems are printed one by one."""


def train(config: Config, overrides: list[str]) -> None:
    """Runs one training to its end, or from where it was interrupted; not if it is done or another process is at it.

    Raises:
        ConfigError: another process works on the run, and resume is not auto.
        SystemExit: with code 0, after the checkpoint, if the process was asked to leave.
    """
    with joined(config.trainer) as ranks:
        torch.set_num_threads(config.trainer.threads)
        if ranks.rank > 0:
            follow(config, ranks)
            return
        opening = Opening(ranks)
        try:
            train_first(config, overrides, opening)
        finally:
            opening.tell(None)  # nothing to do, or an error: the others must not wait for more


def train_first(config: Config, overrides: list[str], opening: Opening) -> None:
    """What rank 0 does: finds out whether there is something to do, and holds the run while it does it."""
    arm = (config.study and config.study.arm) or arm_of(config)
    path = run_path(config, arm)
    if packed := packed_cell(config, arm):
        print(f"{path}: done, packed in {packed}; nothing to do")
        return
    with held(path) as holder:
        if holder is None:
            train_held(config, overrides, arm, opening)
        elif config.resume == "auto":
            print(f"{path}: {holder} is at it; left alone")
        else:
            raise ConfigError(f"{path}: {holder} is at it; wait for it, or give this run another study_name")


def arm_of(config: Config) -> str:
    """What a run that belongs to no study is called."""
    family = config.algorithm.family
    return arm_name(config.algorithm.techniques.model_dump(), family, switches_of(family))


def follow(config: Config, ranks: Ranks) -> None:
    """What the other ranks do: train with rank 0, and write nothing but their shards."""
    start = ranks.first(lambda: None)
    if start is not None:
        fit(config, Parts(config, ranks), start, None, ranks)


def train_held(config: Config, overrides: list[str], arm: str, opening: Opening) -> None:
    """Runs one training that this process holds."""
    config = with_measured_threads(config, run_path(config, arm))
    if is_done(config, arm):
        print(f"{run_path(config, arm)} is finished (resume=auto); nothing to do")
        return
    parts = Parts(config, opening.ranks)
    parts.check()  # before the run's folder is touched: a mistake must not move an older run aside
    for line in idle_settings(config, objective(config.algorithm, config.task.max_response_tokens)):
        print(f"warning: {line}", flush=True)
    folder = open_run(config, overrides, arm)
    loggers = None
    try:
        checkpoint = newest_good(folder.path / "checkpoints") if folder.resumes else None
        start = Start(folder, checkpoint)
        opening.tell(start)
        loggers = Loggers(config, folder)
        module, stop = fit(config, parts, start, loggers, opening.ranks)
    except BaseException as error:
        # Ctrl-C leaves the trainer as SystemExit.
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        status = "stopped" if isinstance(cause, KeyboardInterrupt) else "failed"
        folder.write_run(status=status, error=f"{type(cause).__name__}: {cause}")
        if status == "stopped" and folder.checkpoints:
            print(
                f"stopped by Ctrl-C; continue from {folder.checkpoints[-1].name} with resume=true (run: {folder.path})"
            )
        if loggers:
            loggers.close(exit_code=1)
        raise
    loggers.close()
    if stop.requested:
        folder.write_run(status="preempted")
        print(f"stopped on request after step {module.counters.step}; continue with resume=true (run: {folder.path})")
        stop.hand_over()
        if stop.wants_requeue:
            requeue()
        raise SystemExit(0)  # of a multirun too: the process was asked to leave, not this run alone
    finish(folder, config)


def with_measured_threads(config: Config, path: Path) -> Config:
    """The config with the number of threads that trainer.cpu.auto asks for, and torch set to it."""
    if not is_measured(config):
        return config
    threads = recorded_threads(path, config)
    if threads is None:
        found = measure(Parts(config).policy)
        threads = fastest(found)
        seconds = ", ".join(f"{n}: {took:.2f} s" for n, took in found.items())
        print(f"trainer.cpu.auto: threads={threads} (a small step with {seconds})", flush=True)
    torch.set_num_threads(threads)
    return with_threads(config, threads)


def build_trainer(config: Config, callbacks: list) -> Trainer:
    return Trainer(
        **trainer_arguments(config.trainer),
        max_epochs=1,  # the loader's length bounds the run: max_steps is checked between batches only
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )


def fit(
    config: Config, parts: Parts, start: Start, loggers: Loggers | None, ranks: Ranks
) -> tuple[DAPOModule, StopSignal]:
    """Trains, on every rank; `loggers` on rank 0 alone."""
    stop = StopSignal()
    datamodule = RolloutDataModule(config, parts, stop, ranks)
    callbacks = [Recorder(config, start.folder, loggers, ranks), Checkpoints(config, start.folder, stop, ranks)]
    trainer = build_trainer(config, callbacks)
    sharded = config.trainer.strategy == "fsdp"
    module = DAPOModule(config, lambda: parts.policy, ranks, parts.fill if sharded else None)
    if start.checkpoint and ranks.rank == 0:
        print(f"continuing from {start.checkpoint}")
    try:
        trainer.fit(module, datamodule=datamodule, ckpt_path=start.checkpoint, weights_only=False)
    except (AttributeError, ModuleNotFoundError) as error:
        if start.checkpoint is None or "dapo_lit.rollout" not in str(error):
            raise
        raise ConfigError(
            f"{start.checkpoint} holds unfinished rollouts in the format of another version of dapo_lit ({error}); "
            "finish the run with that version, or start anew with resume=false"
        ) from error
    except StopRequestedError:  # the checkpoint is written, the half-collected step given up
        stop.requested = True  # the signal may have reached another rank alone
    return module, stop


def finish(folder: RunFolder, config: Config) -> None:
    """Marks the run as done, draws its figure and prints what came of it."""
    status = folder.read_run()["status"]
    folder.write_run(status="finished" if status == "running" else status)
    write_atomically(folder.path / "DONE.json", (folder.path / "run.json").read_text())
    figure = plot_run(folder.path)
    print_summary(folder, config)
    print(f"run     {folder.path}\nfigure  {figure}")


def print_summary(folder: RunFolder, config: Config) -> None:
    rows, _ = read_metrics(folder.path)
    before, after = rows.iloc[0], rows.iloc[-1]
    label, k = config.task.label, config.evaluation.samples
    table = Table(title=f"{folder.read_run()['arm']}, seed {config.seed}, {rows.index[-1]} steps", title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    problems = folder.read_run()["problems"]["heldout"]
    for name, key, form in (
        (f"accuracy avg@{k}, {problems} held-out problems", f"avg@{k}", ".3f"),
        ("mean length (tokens)", "length_mean", ".1f"),
        ("truncated", "truncated_frac", ".3f"),
        ("entropy (nats)", "entropy", ".3f"),
    ):
        values = [row.get(f"eval/{label}/{key}") for row in (before, after)]
        if all(value is not None and value == value for value in values):
            table.add_row(name, *(format(value, form) for value in values))
    table.add_row("tokens generated", "", f"{after['tokens_generated']:,.0f}")
    table.add_row("wall time (s, evaluation excluded)", "", f"{after['wall_s']:.0f}")
    Console().print(table)
    print_predictions(folder, label)


def print_predictions(folder: RunFolder, label: str) -> None:
    """The last evaluation question by question, where there are few of them."""
    files = sorted((folder.path / "eval" / label).glob("step_*.parquet"))
    if not files:
        return
    samples = pd.read_parquet(files[-1])
    if samples["problem_id"].nunique() > FEW_QUESTIONS:
        return
    for problem_id, answers in samples.groupby("problem_id", sort=False):
        predicted = answers["extracted"].fillna("none").mode()[0]
        print(f"{problem_id}  predicts {predicted}  {answers['correct'].mean():.3f} right")


def main() -> None:
    warnings.filterwarnings("ignore", module="lightning")  # its advice on loaders and eval mode does not apply here
    logging.getLogger("lightning").setLevel(logging.ERROR)
    disable_progress_bar()  # of loading a model
    sys.exit(run_command(train, Config, "config"))


if __name__ == "__main__":
    main()
