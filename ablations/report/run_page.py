"""The page of one run, which is written while it trains: its curves, its completions, and the commands that ablate.

The training thread writes it. So that a step of a long run costs what one of a short run does, each row is taken once,
as it is made; curves and completions are thinned to a size that does not grow; and the writes are spaced by what they
cost.
"""

import math
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ablations.border import LARGEST, is_share
from ablations.command_text import command, setting
from ablations.compare.statistics import pairs_needed
from ablations.designs import Arm, Setting, own_parts
from ablations.files.layout import kept_states, playable_page
from ablations.files.metrics_file import Metrics, read_metrics
from ablations.files.record import read_config, read_record
from ablations.metrics import METRICS
from ablations.read.outcomes import amount, in_words, unit
from ablations.read.runs import Run, Runs
from ablations.report.document import Document, Part, Table, switch_buttons
from ablations.report.explore import exploration
from ablations.report.html import write_html
from ablations.techniques import REGISTER
from ablations.texts import read_text

EVERY_S = 20.0
"""At least so long between two writes,"""
SHARE = 0.01
"""and so long that they take no more than this share of the time."""
ROWS, EVALUATED = 2_000, 400
"""So many rows without and with an evaluation are drawn, or half as many."""
CHARACTERS = 400_000
"""Of completions."""
ONCE = ("resume=", "replay.record=", "logger.")
"""Overrides that no other run takes over from this one;"""
OWN = ("study_name=", "seed=", "runs_dir=", *ONCE)
"""a study of it takes over less."""


T = TypeVar("T")


class Thinned(list[T]):
    """At most `most` of the items that it is given, at equal distances and with the first one; they are numbered by
    `number`, ascending.

    >>> few = Thinned(3, number=int)
    >>> for number in range(9):
    ...     few.give(number)
    >>> few, few.stride, few.with_last()
    ([0, 4, 8], 4, [0, 4, 8])
    """

    def __init__(self, most: int, number: Any) -> None:
        super().__init__()
        self.most, self.number, self.stride, self._given = most, number, 1, 0
        self._last: list[T] = []

    def give(self, item: T) -> None:
        self.forget_from(self.number(item))
        if self._given % self.stride == 0:
            self.append(item)
        self._given += 1
        self._last = [item]
        if len(self) > self.most:
            self[:] = self[::2]
            self.stride *= 2

    def forget_from(self, number: int) -> None:
        """Forgets what a resumed run makes again."""
        while self and self.number(self[-1]) >= number:
            self.pop()
        if self._last and self.number(self._last[0]) >= number:
            self._last = self[-1:]

    def with_last(self) -> list[T]:
        return self if self[-1:] == self._last else [*self, *self._last]


class RunPage:
    """run.html in the folder of a run, finished or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.due = 0.0
        """On the monotonic clock."""
        self.not_finite: set[str] = set()
        self.plain, self.evaluated = (Thinned[dict[str, Any]](most, _step) for most in (ROWS, EVALUATED))
        known = read_metrics(folder)
        self.not_finite |= known.not_finite
        for row in known.rows:
            self._take(row)

    def row(self, row: Mapping[str, Any]) -> None:
        """Takes the next row of the run, and writes the page if it is due."""
        self._take(row)
        if time.monotonic() < self.due:
            return
        started = time.monotonic()
        self.write()
        now = time.monotonic()
        self.due = now + max(EVERY_S, (now - started) / SHARE)

    def write(self) -> Path | None:
        """Writes the page and returns its path; None before the first row."""
        rows = sorted([*self.plain.with_last(), *self.evaluated.with_last()], key=_step)
        if not rows:
            return None
        record = read_record(self.folder)
        metrics, not_finite = Metrics(rows).table, frozenset(self.not_finite)
        run = Run.of(
            self.folder, record, self._config, metrics=metrics, not_finite=not_finite, overrides=self._overrides
        )
        evaluated = [str(key) for key in metrics if str(key).startswith("eval/") and "/avg@" in str(key)]
        own = [str(key) for key in metrics if key in METRICS]
        metric, steps = "rollout/accuracy", run.config["budget"]["steps"]
        live = run.status == "running"
        parts: list[Part] = [
            f"Step {rows[-1]['step']} of {steps}, {run.status}." + (" This page refreshes itself." if live else ""),
            "## What would it be without a technique?",
            *_playable(self.folder),
            _commands(run),
            _course(
                run, [*evaluated, metric, "rollout/entropy", "rollout/length_mean", "rollout/truncated_frac", *own]
            ),
            *(f"`{key}`, {METRICS[key].words}: {METRICS[key].definition}" for key in own),
        ]
        if self.plain.stride > 1:
            parts.append(
                f"The curves are drawn through one step in {self.plain.stride}; metrics.jsonl has all of them."
            )
        parts_of_own = [
            f"{key.removeprefix('algorithm.')}={v}" for key, v in own_parts(run.config["algorithm"]).items()
        ]
        title = ", ".join((f"{run.study}: {run.arm}", *parts_of_own, f"seed {run.seed}"))
        explored = exploration(Runs((run,)), metric, live=live, characters=CHARACTERS)
        return write_html(Document(title, parts, explored), self.folder / "run.html")

    def _take(self, row: Mapping[str, Any]) -> None:
        taken: dict[str, Any] = {}
        for key, value in row.items():
            if isinstance(value, float) and (not math.isfinite(value) or abs(value) > LARGEST):
                self.not_finite.add(key)
            elif value is not None and key != "not_finite":
                taken[key] = value
        is_evaluated = any(key.startswith("eval/") for key in taken)
        one, other = (self.evaluated, self.plain) if is_evaluated else (self.plain, self.evaluated)
        other.forget_from(taken["step"])
        one.give(taken)

    @cached_property
    def _config(self) -> dict[str, Any]:
        return read_config(self.folder)

    @cached_property
    def _overrides(self) -> tuple[str, ...]:
        file = self.folder / "overrides.txt"
        return tuple(read_text(file, errors="replace").splitlines()) if file.is_file() else ()


def _step(row: Mapping[str, Any]) -> int:
    step: int = row["step"]
    return step


def write_run_page(folder: Path) -> Path | None:
    """Writes run.html into the folder of a run and returns its path; None before its first row."""
    return RunPage(folder).write()


def _playable(folder: Path) -> Iterator[Part]:
    """A button for each technique and each playable page that was made of a step of the run."""
    for step in kept_states(folder):
        if playable_page(folder, step).is_file():
            yield f"Step {step} to play with, under the other position of"
            address = playable_page(Path(), step).as_posix()
            yield switch_buttons(address)


def _commands(run: Run) -> str:
    """Commands that compare this run with runs without a technique, as Markdown."""
    text = "One run cannot show what a technique does, or how much seeds differ."
    if recorded := (run.config.get("replay") or {}).get("record"):
        play = command("replay", str(run.folder), f"step={recorded[0]}", "--html")
        text += f" A page of step {recorded[0]} to play with, five switches and every token:\n\n```\n{play}\n```\n\n"
    if any(line.startswith("study.arm=") for line in run.overrides):
        found = command("report", str(run.folder.parent.parent))
        return f"{text} This run is one of the study {run.study}, which says:\n\n```\n{found}\n```"
    arms, parts = _with_and_without(run.config["algorithm"])
    # arms set the switches, and what is of the user's own
    own = (*OWN, "algorithm.techniques.", "algorithm.own_techniques", *parts)
    kept = [line for line in run.overrides if line and not line.lstrip("+~").startswith(own)]
    pairs = pairs_needed(1 if arms else len(REGISTER))
    study = command("train", "-m", *kept, "+study=leave_one_out", *arms, f"seed=range(0,{pairs})")
    own_settings = any(line.lstrip("+~").startswith("algorithm") for line in run.overrides)
    if any(run.config["algorithm"]["techniques"].values()) and not own_settings:
        # into the same folder, where a report finds both
        again = [line for line in run.overrides if line and not line.lstrip("+~").startswith((*ONCE, "seed="))]
        without = command("train", *again, "algorithm=naive_grpo", f"seed={run.seed}")
        both = command("report", str(run.folder.parent.parent))
        text += (
            " One run more goes the same way without DAPO's techniques, from the same base policy, and a report shows "
            f"both:\n\n```\n{without}\n{both}\n```\n\n"
        )
    what = "for each technique, with and without it, the fewest that can decide " + f"{len(REGISTER)} comparisons"
    if arms:
        what = "with and without what is of your own, the fewest that can decide"
    return f"{text} To train {pairs} pairs of runs {what}:\n\n```\n{study}\n```"


def _with_and_without(algorithm: Mapping[str, Any]) -> tuple[list[str], dict[str, Setting]]:
    """The settings of a study of what a run has from a user's file, and the keys of parts that its arms set."""
    own, parts = algorithm.get("own_techniques") or [], own_parts(algorithm)
    on = frozenset(name for name, value in algorithm["techniques"].items() if value)
    if not own and not parts:
        return [], {}
    without = Arm(on).name
    return [setting("study.arms", [without, Arm(on | {*own}, parts).name]), f"study.reference={without}"], parts


def _course(run: Run, keys: list[str]) -> Table:
    rows = [
        [in_words(key), amount(key, series.iloc[0]), amount(key, series.iloc[-1]), "%" if is_share(key) else unit(key)]
        for key in dict.fromkeys(keys)
        if len(series := run.series(key))
    ]
    return Table("course", "The first and the last value that was logged.", ["metric", "first", "last", ""], rows)
