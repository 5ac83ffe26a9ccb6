"""Ranks that are threads of one process, for tests of what several ranks do together."""

from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from dapo_lit.ranks import Ranks


class MeetingEndedError(Exception):
    """Another rank has failed."""


class Meeting:
    """Where some ranks exchange values, in order; one that fails sends the others home."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = Condition()
        self.ended = False
        self.rounds: defaultdict[int, dict[int, Any]] = defaultdict(dict)

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()


@dataclass
class Posted:
    """A rank's n-th exchange: the stand-in for `Exchange`."""

    meeting: Meeting
    number: int

    def done(self) -> bool:
        return len(self.meeting.rounds[self.number]) == self.meeting.size

    def wait(self) -> list[Any]:
        with self.meeting.changed:
            assert self.meeting.changed.wait_for(lambda: self.done() or self.meeting.ended, timeout=20)
        if not self.done():
            raise MeetingEndedError
        return [value for _, value in sorted(self.meeting.rounds[self.number].items())]


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    meeting: Meeting = field(default_factory=lambda: Meeting(1))
    of_engine: Meeting = field(default_factory=lambda: Meeting(1))
    made: Counter[Meeting] = field(default_factory=Counter)

    def post(self, meeting: Meeting, value: Any) -> Posted:
        posted = Posted(meeting, self.made[meeting])
        self.made[meeting] += 1
        with meeting.changed:
            meeting.rounds[posted.number][self.rank] = value
            meeting.changed.notify_all()
        return posted

    def gather(self, value: Any) -> list[Any]:
        return self.post(self.meeting, value).wait()

    def exchange(self, payload: bytes) -> Any:
        assert self.made[self.meeting] == 0 or Posted(self.meeting, self.made[self.meeting] - 1).done(), "one at a time"
        return self.post(self.meeting, payload)

    def any_of_engine(self, value: bool) -> bool:
        return any(self.post(self.of_engine, value).wait())

    def from_leader(self, value: Any) -> Any:
        return self.post(self.of_engine, value).wait()[0]


def on_ranks(size: int, act: Callable[[ThreadRanks], Any], per_engine: int = 1) -> list[Any]:
    """What `act` gives on every rank; raises the error of the rank that failed first."""
    meeting, *of_engines = [Meeting(size)] + [Meeting(per_engine) for _ in range(size // per_engine)]

    def on_rank(rank: int) -> Any:
        of_engine = of_engines[rank // per_engine]
        try:
            return act(ThreadRanks(rank, size, per_engine=per_engine, meeting=meeting, of_engine=of_engine))
        except BaseException:
            for each in (meeting, *of_engines):
                each.end()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(on_rank, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, MeetingEndedError)):
        raise error
    return [future.result() for future in futures]
