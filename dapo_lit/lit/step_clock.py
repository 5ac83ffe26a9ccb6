"""Accounts for the training thread's time from one row of metrics to the next.

What is done once the row of a step is written (its page, a checkpoint, the start of the next step) is in the next row.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

PARTS = ("time/record_s", "time/page_s", "time/checkpoint_s")
REST = "time/other_s"
WITHIN_OTHERS = ("time/tail_s",)
"""A time that others contain."""
OF_SAMPLING = ("time/generate_s", "time/verify_s")
"""Of another thread, where a step is sampled ahead; the training thread's part of it is `time/wait_s`."""


class StepClock:
    """Adds up PARTS; `row_times` closes the account of a row."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = defaultdict(float)
        self.start()

    def start(self) -> None:
        """Forgets what came before: the start of a run is no time between rows."""
        self._spent.clear()
        self._since = time.perf_counter()

    @contextmanager
    def during(self, key: str) -> Iterator[None]:
        """Counts the block under one of PARTS, also if it fails."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[key] += time.perf_counter() - started

    def row_times(self, row: Mapping[str, Any], sampled_ahead: bool = False) -> dict[str, float]:
        """PARTS since the row before, and the REST: what neither they nor the times in `row` have. All times of a row
        but WITHIN_OTHERS are then the clock's; of a step sampled ahead, all but OF_SAMPLING too."""
        now = time.perf_counter()
        parts = {key: self._spent[key] for key in PARTS}
        left_out = {*WITHIN_OTHERS, *(OF_SAMPLING if sampled_ahead else ())}
        known = sum(row[key] for key in row if key.startswith("time/") and key not in left_out)
        # Of several ranks a row has the largest times, which may be more than this one's.
        rest = max(0.0, now - self._since - known - sum(parts.values()))
        self._spent.clear()
        self._since = now
        return parts | {REST: rest}
