"""A sign of life that a run writes all the time, also during a long rollout, update or evaluation.

Other hosts cannot see a run's process; they go by the age of the file `heartbeat` in its folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from dapo_lit.run_files import HEARTBEAT

INTERVAL_S = 30.0


@contextmanager
def beating(run: Path, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Touches the run's heartbeat every `interval_s` seconds; a thread does it, which ends with the process."""
    ended = Event()

    def beat() -> None:
        while not ended.wait(interval_s):
            touch()

    def touch() -> None:
        with suppress(OSError):  # a full disk shows in what the run writes itself
            (run / HEARTBEAT).touch()

    touch()
    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
