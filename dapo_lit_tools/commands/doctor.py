"""Looks at what a run needs on this machine: one line for each, with what to do where something is missing.

    python -m dapo_lit.doctor
    python -m dapo_lit.doctor --json

Nothing is changed or downloaded. Exit codes: 0 a run on this machine can work; 1 something that every run needs is
missing, and its line says what to do.
"""

import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ablations.arguments import CommandParser, add_json
from ablations.screen import on_screen, print_table

SCHEMA = "dapo_lit/doctor/1"
"""Of what --json prints: schemas/doctor.json."""
State = Literal["good", "optional", "missing"]
"""`optional`: some runs need it. `missing`: every run does."""
LEAST_MEMORY_GB, LEAST_DISK_GB = 2.0, 1.0
"""What the smallest experiments take, and their checkpoints."""
HUB_S = 3.0
"""Seconds in which the model hub must answer."""


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do about it; empty where nothing need be done."""

    subject: str
    found: str
    state: State = "good"
    remedy: str = ""


def findings() -> Iterator[Finding]:
    """Everything that is looked at, in the order of the table."""
    for look in (python, packages, gpu, vllm, memory, disk, hub, loggers):
        yield from look()


def python() -> Iterator[Finding]:
    """Python's version, against those that the package declares."""
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        "Python", platform.python_version(), "good" if good else "missing",
        "" if good else "use Python 3.11, 3.12 or 3.13",
    )  # fmt: skip


def packages() -> Iterator[Finding]:
    """The libraries without which nothing trains, imported."""
    for name in ("torch", "lightning", "transformers", "hydra-core", "sympy"):
        yield _imported(name, name.removesuffix("-core"))
    yield Finding("dapo_lit", version("dapo_lit") + _commit())


def _imported(name: str, module: str) -> Finding:
    try:
        import_module(module)
    except Exception as error:  # a library with a broken shared object raises what it likes
        reason = " ".join(str(error).split())[:120]
        return Finding(name, f"does not import: {type(error).__name__}: {reason}", "missing", "make install")
    return Finding(name, version(name))


def _commit() -> str:
    from dapo_lit.runs.code_state import code_state, uncommitted

    commit = code_state()["git_commit"]
    changed = len(uncommitted()) if commit else 0
    return (f", commit {commit[:8]}" if commit else "") + (f" with {changed} changed files" if changed else "")


def gpu() -> Iterator[Finding]:
    """The GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        yield Finding(
            "GPU", "none that torch can use", "optional",
            "the small experiments run on a CPU; for others a driver, and torch built for it (docs/tutorials/gpu.md)",
        )  # fmt: skip
        return
    for index in range(torch.cuda.device_count()):
        held = torch.cuda.get_device_properties(index)
        free = torch.cuda.mem_get_info(index)[0]
        text = f"{held.name}, {free / 2**30:.0f} of {held.total_memory / 2**30:.0f} GiB free, CUDA {torch.version.cuda}"
        yield Finding(f"GPU {index}", text)


def vllm() -> Iterator[Finding]:
    """vLLM, which is installed apart from the rest."""
    try:
        yield Finding("vLLM", version("vllm"))
    except PackageNotFoundError:
        yield Finding(
            "vLLM", "not installed", "optional",
            "rollout=torch needs none; for rollout=vllm see docs/vllm.md",
        )  # fmt: skip


def memory() -> Iterator[Finding]:
    """Cores and memory."""
    held = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    short = held < LEAST_MEMORY_GB
    yield Finding(
        "machine", f"{os.cpu_count()} cores, {held:.0f} GB of memory", "missing" if short else "good",
        f"the smallest runs take {LEAST_MEMORY_GB:g} GB" if short else "",
    )  # fmt: skip


def disk() -> Iterator[Finding]:
    """Room where runs are written and where base policies are kept, and whether one may write there."""
    from dapo_lit.policy.base import default_cache

    for subject, folder in (("runs", Path("runs")), ("base policies", default_cache())):
        place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        free = shutil.disk_usage(place).free / 1e9
        shown = str(folder).replace(str(Path.home()), "~", 1)
        if not os.access(place, os.W_OK):
            remedy = "runs_dir=DIR" if subject == "runs" else "DAPO_LIT_CACHE=DIR"
            yield Finding(subject, f"{shown} cannot be written", "missing", f"another place: {remedy}")
        elif free < LEAST_DISK_GB:
            yield Finding(subject, f"{free:.1f} GB free at {shown}", "missing", "free some space, or use another disk")
        else:
            yield Finding(subject, f"{free:.0f} GB free at {shown}")


def hub() -> Iterator[Finding]:
    """Whether the model hub answers: models and data sets by name need it, files on this disk do not."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    host, port = urlsplit(endpoint).hostname or endpoint, urlsplit(endpoint).port or 443
    remedy = "give models and data as folders and files (policy.path=DIR, task.path=FILE)"
    if offline:
        yield Finding("model hub", "switched off by HF_HUB_OFFLINE", "optional", remedy)
        return
    try:
        socket.create_connection((host, port), timeout=HUB_S).close()
    except OSError as error:
        yield Finding("model hub", f"{host} does not answer ({error})", "optional", remedy)
    else:
        yield Finding("model hub", f"{host} answers")


def loggers() -> Iterator[Finding]:
    """The displays that are installed, and whether Weights & Biases has a login (the server is not asked)."""
    if _has_wandb_key():
        yield Finding("W&B", "login found")
    else:
        yield Finding("W&B", "no login", "optional", "logger=wandb: wandb login, or logger.wandb.mode=offline")
    for name in ("tensorboard", "mlflow"):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "not installed", "optional", f"logger={name}: pip install {name}")


def _has_wandb_key() -> bool:
    import netrc

    if os.environ.get("WANDB_API_KEY"):
        return True
    file = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(str(file)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


SHOWN: dict[State, str] = {"good": "good", "optional": "-", "missing": "MISSING"}


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = CommandParser(prog="python -m dapo_lit.doctor", description=(__doc__ or "").splitlines()[0])
    add_json(parser)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    found = list(findings())
    can_run = not any(one.state == "missing" for one in found)
    if options.json == "true":
        print(json.dumps({"schema": SCHEMA, "can_run": can_run, "findings": [asdict(f) for f in found]}, indent=1))
    else:
        columns = ("", "found", "state", "what to do")
        print_table(columns, [(f.subject, f.found, SHOWN[f.state], f.remedy) for f in found], left=columns)
        lacking = [one.subject for one in found if one.state == "missing"]
        print(f"{' and '.join(lacking)}: see what to do" if lacking else "A run on this machine can work.")
    return 0 if can_run else 1


if __name__ == "__main__":
    sys.exit(main())
