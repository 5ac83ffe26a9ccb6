"""A process's claim on a run: the file `heartbeat` in its folder, with a token, host and process id.

Its age is a sign of life for other hosts, during a long rollout, update or evaluation too: a thread touches it. Its
token tells a process that lost the run (another host took it over, the folder was moved or removed) to write no more.
"""

import json
import os
import platform
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pydantic import with_config
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from ablations.border import OPEN, Whole, checked
from ablations.errors import DamagedError, HeldError
from ablations.files.atomic import make_folder, remove_empty, write_text
from ablations.files.layout import HEARTBEAT, METRICS, RECORD
from ablations.files.record import read_record
from ablations.texts import json_tree, read_bytes

INTERVAL_S = 30.0
SILENT_S = 600.0
"""A run that has not written for so long is lost. It beats every half minute; the rest is for slow network disks and
for clocks that differ."""


@with_config(OPEN)
class Claim(TypedDict, total=False):
    """The content of `heartbeat`."""

    host: str | None
    pid: Whole | None
    owner: str


def read_claim(run: Path) -> dict[str, Any]:
    """Host, pid and token of the process that trains the run, or trained it last if it was killed; {}: none."""
    file = run / HEARTBEAT
    try:
        return {**checked(json_tree(read_bytes(file), file), Claim, file)}
    except (FileNotFoundError, NotADirectoryError, DamagedError):
        return {}


def alive(record: Mapping[str, Any], run: Path) -> bool:
    """True if a run with this run.json still writes into its folder; on this host its process must also exist.

    The files' times count, not those in them: a step may take hours, and only the heartbeat is sure to be touched.
    """
    host, pid = record.get("host"), record.get("pid")
    if not host or host == os.uname().nodename:
        if not pid:
            return False
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # it exists and belongs to another user
            pass
    written = [file.stat().st_mtime for name in (HEARTBEAT, METRICS, RECORD) if (file := run / name).is_file()]
    # Later than now: a clock was set back.
    return bool(written) and abs(time.time() - max(written)) < SILENT_S


def write_claim(run: Path, owner: str) -> None:
    # The token and not the pid alone: pids are used again, and two hosts have the same ones.
    claim = {"owner": owner, "host": platform.node(), "pid": os.getpid()}
    write_text(run / HEARTBEAT, json.dumps(claim))


def check_claim(run: Path, owner: str) -> None:
    """Raises HeldError if the run is no longer the one that this process claimed."""
    claim = read_claim(run)
    if claim.get("owner") != owner:
        reason = "its folder was moved or removed"
        if (run / RECORD).is_file():
            by = f"process {claim['pid']} on {claim['host']}" if claim else "another process, which has ended,"
            reason = f"{by} took it over"
        raise HeldError(f"{run}: {reason}; this process stops and writes nothing more there")


def holder(run: Path) -> str | None:
    """The process that trains a run now, in words; None if there is none.

    A claim is written before run.json; without one, a run.json that another machine wrote counts as long as that
    machine writes into the folder.
    """
    record: Mapping[str, Any] = read_claim(run)
    if not record:
        with suppress(DamagedError, NotADirectoryError):  # opening the run says so
            record = read_record(run)
        if record.get("status") != "running" or record.get("host") == platform.node():
            return None
    # This process's own claim is no obstacle: it resumes what it holds.
    if record.get("pid") == os.getpid() or not alive(record, run):
        return None
    return f"another process (pid {record.get('pid', 'unknown')} on {record.get('host', 'this machine')})"


@contextmanager
def claimed(run: Path, interval_s: float = INTERVAL_S) -> Iterator[str]:
    """Claims a run, touches the claim every `interval_s` seconds and takes it back at the end; yields its token."""
    owner, ended = secrets.token_hex(8), Event()
    made = make_folder(run)
    write_claim(run, owner)

    def beat() -> None:
        while not ended.wait(interval_s):
            # A full disk shows in what the run writes itself.
            with suppress(OSError, HeldError):
                check_claim(run, owner)
                os.utime(run / HEARTBEAT)

    # A thread, because a rollout step may take hours without a line of the main thread.
    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield owner
    finally:
        ended.set()
        thread.join()
        with suppress(OSError, HeldError):
            check_claim(run, owner)
            (run / HEARTBEAT).unlink()
        remove_empty(made)
