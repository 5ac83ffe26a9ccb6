"""Ends a command that is asked to end, together with everything it started.

The first SIGINT, SIGTERM or SIGHUP (a closed terminal) raises Stopped in the main thread, so that the `with` and
`finally` of whatever has started a process or made something end the one and save the other. One line then says what
was kept. A process that was started here gets SIGTERM when its starter is killed, and ends in the same way.

A training replaces the handlers while it has steps to save (dapo_lit/runs/preemption.py).
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STARTER = "DAPO_LIT_ENDS_WITH"
"""Environment variable of a command that another program started: the process id to end with."""
_PR_SET_PDEATHSIG = 1


class Stopped(KeyboardInterrupt):
    """A signal asks the command to end. Its notes say what was kept (`keeping`).

    >>> str(Stopped(signal.SIGINT)), Stopped(signal.SIGTERM).exit_code
    ('Ctrl-C', 143)
    >>> import pickle
    >>> pickle.loads(pickle.dumps(Stopped(signal.SIGTERM))).exit_code
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
        self.number = number

    def __reduce__(self) -> tuple[type["Stopped"], tuple[int]]:
        return Stopped, (self.number,)  # ranks tell each other what has ended them

    @property
    def exit_code(self) -> int:
        """What shells and schedulers read as "stopped", not as "failed"."""
        return 128 + self.number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within it the first of SIGNALS raises Stopped. Later ones do not interrupt what that makes a command undo and
    save: one Ctrl-C is often two signals, because the terminal sends one to all its processes, and a program passes on
    its own.
    """
    came = list[int]()

    def stop(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append(number)
            raise Stopped(number)

    # Neither one that is ignored, as SIGHUP under nohup, nor one that the program which called this handles.
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in SIGNALS if signal.getsignal(number) in defaults}
    if threading.current_thread() is not threading.main_thread():
        before.clear()
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        # Not after the first: the end of the process, which saves, is still to come.
        for number, handler in before.items() if not came else ():
            signal.signal(number, handler)


@contextmanager
def keeping(kept: Callable[[], str]) -> Iterator[None]:
    """Within it, the line of a command that is stopped ends with `kept()`: what it kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(kept())
        raise


@contextmanager
def stops_in_one_line() -> Iterator[None]:
    """Around a command: it can be stopped, says so in one line, and ends with the program that started it, if that
    asks for it by STARTER."""
    if starter := os.environ.pop(STARTER, None):
        end_with(int(starter))
    with stopped_by_signals():
        try:
            yield
        except KeyboardInterrupt as stop:
            stopped = stop if isinstance(stop, Stopped) else Stopped(signal.SIGINT)
            kept = "; ".join(getattr(stop, "__notes__", ())) or "nothing new was kept"
            if os.environ.get("RANK", "0") == "0":  # of the ranks of a run the first speaks
                print(f"stopped by {stopped}; {kept}", file=sys.stderr, flush=True)
            raise SystemExit(stopped.exit_code) from None


def end_with(starter: int, number: int = signal.SIGTERM) -> None:
    """Lets the kernel send this process a signal when `starter`, which started it, ends for whatever reason.

    On Linux only. The thread that started it counts: it has to wait for this process.
    """
    import ctypes  # what is started by another needs it, and no other command

    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is None:
        return
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != starter:  # it ended before the kernel was asked
        os.kill(os.getpid(), number)
