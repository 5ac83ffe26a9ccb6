"""The servers of a run, as one rank uses them: which it samples from, which it gives orders to, which are lost.

With as many servers as ranks or more, rank r of N has every N-th server, starting with the r-th. With fewer, ranks
share them, and the first rank of a server gives its orders. A rank whose servers are all lost samples from the others.
"""

import time
from collections.abc import Callable
from typing import Any

from dapo_lit.engines.vllm_server.client import ServerClient, ServerError
from dapo_lit.log import log
from dapo_lit.ranks import Ranks

GENERATED = "vllm:generation_tokens_total"
"""The counter, one line for each engine of a server, in what it answers to /metrics."""


class Servers:
    """Indices are those of `client.urls`."""

    def __init__(self, client: ServerClient, ranks: Ranks) -> None:
        self.client = client
        self._ranks = ranks
        count = len(client.urls)
        self._led = list(range(ranks.rank, count, ranks.size))
        self._own = self._led or [ranks.rank % count]
        self.lost: dict[int, str] = {}  # with what was wrong
        self._generated: dict[int, float] = {}

    @property
    def usable(self) -> list[int]:
        """Those that this rank samples from now; empty if every server is lost."""
        every = range(len(self.client.urls))
        return [i for i in self._own if i not in self.lost] or [i for i in every if i not in self.lost]

    def none_left(self) -> ServerError:
        return ServerError(f"no server is left ({'; '.join(self.lost.values())})")

    def order(self, path: str, body: dict[str, Any] | None = None) -> dict[int, Any]:
        """A POST to the servers that this rank leads; what each answers. One that does not, or with an error, is lost.

        Other ranks wait for this one meanwhile, so nothing that is wrong with a server is raised here.
        """
        led = [index for index in self._led if index not in self.lost]
        answers = self.client.post(path, {self.client.urls[index]: body for index in led})
        done = {}
        for index, answer in zip(led, answers, strict=True):
            if isinstance(answer, ServerError):
                self.lose(index, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                done[index] = answer
        return done

    def agree_on_lost(self) -> None:
        """Every rank takes for lost what any rank has lost. A collective; raises ServerError if no server is left."""
        self.lost = self._lost_anywhere()
        if not self.usable:
            raise self.none_left()

    def _lost_anywhere(self) -> dict[int, str]:
        return {index: fault for lost in self._ranks.gather(self.lost) for index, fault in lost.items()}

    def lose(self, index: int, error: Exception) -> None:
        """Takes no more samples from a server until it answers again at a sync."""
        if index not in self.lost:
            self.lost[index] = str(error)
            log.warning(f"a server is lost, and its requests go to the others ({error})")

    def has_generated(self, index: int) -> bool:
        """True if a server has generated tokens, of any request of any rank, since this was asked last."""
        try:
            text = self.client.run(self.client.text("GET", self.client.urls[index], "/metrics"))
        except ServerError:
            return False
        lines = [line for line in text.splitlines() if line.startswith(GENERATED)]
        before = self._generated.get(index)
        self._generated[index] = sum(float(line.rpartition(" ")[2]) for line in lines)
        return self._generated[index] != before

    def agree(self, check: Callable[[str], None], wait_s: float) -> None:
        """Every rank takes the same servers for lost: those that fail `check` now. A collective, between steps.

        Raises ServerError if none is left for `wait_s` seconds.
        """
        before, until = self._lost_anywhere(), time.monotonic() + wait_s
        while True:
            faults = {index: _fault(check, self.client.urls[index]) for index in self._led}
            self.lost = {index: fault for index, fault in faults.items() if fault}
            self.lost = self._lost_anywhere()
            late: bool = self._ranks.first(lambda: time.monotonic() >= until)
            if self.usable or late:
                break
            time.sleep(0.5)
        for index in self._led:
            if (index in self.lost) != (index in before):
                state = f"is lost, and left out: {faults[index]}" if faults[index] else "answers again"
                log.info(f"{self.client.urls[index]} {state}")
        if not self.usable:
            raise self.none_left()


def _fault(check: Callable[[str], None], url: str) -> str | None:
    """The first line of what is wrong with a server; None: nothing is."""
    try:
        check(url)
    except (ServerError, ValueError) as error:
        return str(error).partition("\n")[0]
    return None
