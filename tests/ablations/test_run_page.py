"""The page of a long run: a row is taken once, what is drawn stays small, writes are spaced by their cost."""

import json
import re
import zlib
from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run

from ablations.report import run_page
from ablations.report.run_page import EVALUATED, EVERY_S, ROWS, SHARE, RunPage, Thinned


def drawn(page: Path) -> dict[str, Any]:
    """The data in a page."""
    content = page.read_text(encoding="utf-8")
    (found,) = (text for text in re.findall(r"<script[^>]*>([\w+/=]{200,})</script>", content))
    data: dict[str, Any] = json.loads(zlib.decompress(b64decode(found)))
    return data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, study="long", steps=12, every=3, status="running")


def test_a_page_of_100_000_rows_is_below_a_megabyte_and_has_the_first_the_last_and_every_2_to_the_nth(run: Path):
    page = RunPage(run)
    page.due = float("inf")
    of_a_step = {f"group/metric_{n}": n / 7 for n in range(100)}
    for step in range(13, 100_000):
        evaluated = {"eval/easy/avg@4": 0.5} if step % 100 == 0 else {}
        page.row({"step": step, "rollout/accuracy": step / 1e5} | (of_a_step if step % 8 == 0 else {}) | evaluated)
    written = page.write()
    assert written is not None
    assert written.stat().st_size < 1_000_000
    values = drawn(written)["runs"][0]["values"]
    steps = values["step"]
    assert (steps[0], steps[-1]) == (0, 99_999)
    assert ROWS / 2 < len(steps) <= ROWS + EVALUATED + 2
    plain = [b - a for a, b in pairwise(step for step in steps if step % 100) if step > 12]
    assert max(plain) <= 2 * page.plain.stride
    at = dict(zip(steps, values["eval/easy/avg@4"], strict=True))
    assert EVALUATED / 2 < sum(value is not None for value in at.values()) <= EVALUATED + 1
    assert f"one step in {page.plain.stride}" in written.read_text()


def test_a_row_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch):
    page = RunPage(run)
    monkeypatch.setattr(run_page, "read_metrics", lambda folder: pytest.fail("the rows were read again"))
    (run / "metrics.jsonl").unlink()
    page.row({"step": 13, "rollout/accuracy": 0.25})
    assert drawn(run / "run.html")["runs"][0]["values"]["step"] == [*range(14)]


def test_a_resumed_run_replaces_the_rows_that_it_makes_again(run: Path):
    page = RunPage(run)
    for step, value in ((13, 0.1), (14, 0.2), (13, 0.75), (14, float("nan"))):
        page.row(
            {"step": step, "rollout/accuracy": value, "eval/easy/avg@4": value}
            if step == 13
            else {"step": step, "rollout/accuracy": value}
        )
    data = drawn(page.write() or run)["runs"][0]
    assert data["values"]["step"] == [*range(15)]
    assert data["values"]["rollout/accuracy"][-2:] == [0.75, None]
    assert data["spoilt"] == ["rollout/accuracy"]


def test_writes_are_as_far_apart_as_their_cost_asks(run: Path, monkeypatch: pytest.MonkeyPatch):
    """A page of three seconds is written every five minutes, a cheap one every EVERY_S; never at every row."""
    now, cost, written = [1000.0], [0.0], list[float]()

    def write(self: RunPage) -> None:
        now[0] += cost[0]
        written.append(now[0])

    monkeypatch.setattr(RunPage, "write", write)
    monkeypatch.setattr(run_page.time, "monotonic", lambda: now[0])
    page = RunPage(run)
    for step in range(13, 213):
        now[0] += 1.0
        page.row({"step": step})
    assert [b - a for a, b in pairwise(written)] == [EVERY_S] * (len(written) - 1)
    cost[0] = 3.0
    before = len(written)
    for step in range(213, 1813):
        now[0] += 1.0
        page.row({"step": step})
    apart = [b - a for a, b in pairwise(written[before:])]
    assert len(apart) >= 4
    assert all(3.0 / SHARE <= gap <= 3.0 / SHARE + 5 for gap in apart)


def test_thinned_items_are_at_equal_distances_and_one_that_comes_again_replaces_what_followed():
    few = Thinned[int](4, number=int)
    for number in range(100):
        few.give(number)
        assert len(few) <= 4
        assert few.with_last()[-1] == number
    assert {b - a for a, b in pairwise(few)} == {few.stride}
    assert few[0] == 0
    few.give(40)
    assert few.with_last() == [*(kept for kept in (0, few.stride) if kept < 40), 40]
