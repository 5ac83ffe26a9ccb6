"""Decides whether this process trains a run: not if it is packed already or another process is running it."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from dapo_lit.config import Config
from dapo_lit.config.identity import differences, identity
from dapo_lit.errors import DamagedError
from dapo_lit.files import make_folder, remove_empty
from dapo_lit.run_files import alive, read_claim, read_record
from dapo_lit.runs.resume import describe
from dapo_lit.study.read.packed_cells import packed_config


def packed_cell(config: Config, arm: str) -> Path | None:
    """The packed cell under study.packed that makes this run unnecessary: the same experiment, finished."""
    if config.study is None or config.study.packed is None or config.resume != "auto":
        return None
    folder = Path(config.study.packed)
    cell = folder / arm / f"seed_{config.replicate}"
    packed = packed_config(folder, arm, config.replicate)
    if packed is None:
        return None
    changes = differences(identity(packed), identity(config.model_dump(mode="json")))
    if changes:
        print(f"{cell} is packed with another config ({describe(changes)}); training it again")
        return None
    return cell


@contextmanager
def held(path: Path) -> Iterator[str | None]:
    """Locks the run at `path`; yields None, or a description of the process that has the lock.

    The lock is flock on `.seed_<n>.lock` in the arm's folder, which the system releases when the process ends in any
    way. For machines that share a disk but no locks: a run whose run.json names another machine counts as locked while
    that machine writes into its folder.
    """
    made = make_folder(path.parent)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield _holder(path)
        return
    try:
        record = _record(path)
        elsewhere = record.get("status") == "running" and record.get("host") != platform.node()
        yield _holder(path) if elsewhere and alive(record, path) else None
    finally:
        if not path.exists():
            Path(lock.lock_file).unlink(missing_ok=True)  # nobody waits for this lock
        lock.release()
        remove_empty(made)


def _holder(path: Path) -> str:
    record = _record(path)
    return f"another process (pid {record.get('pid', 'unknown')} on {record.get('host', 'this machine')})"


def _record(folder: Path) -> dict[str, object]:
    """The claim on a run, which is written before run.json; else run.json, {} if it is damaged: opening it says so."""
    try:
        return {"status": "running", **claim} if (claim := read_claim(folder)) else read_record(folder)
    except DamagedError:
        return {}
