"""A ledger: what was tried, run by run, as CSV or JSON lines. `decide` reads it; programs that tune write it.

    change,pair,with,without,cost
    clip_higher,0,0.412,0.401,31.5
    clip_higher,1,0.388,0.390,30.9

`pair` is what the two runs share: seed, base policy, data order. It may be called `seed`. A row with only one of the
two values is a pair that is not complete yet. Without pairs (no such column, or nothing in it) the runs of the two
sides are compared as samples that share nothing, and a row may hold a run of one side only. `cost` is of the whole
row, in any unit, and may be left out. Other columns are notes of your own.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from ablations.border import LARGEST, MOST_COLUMNS, Number, checked, short
from ablations.errors import UserError
from ablations.read.counted import counted
from ablations.read.separated import lines_of
from ablations.texts import MB, json_tree, read_text

MOST_ROWS = 100_000
MOST_BYTES = 32 * MB
MOST_CHANGES = 1000
"""Each is decided in a millisecond or two."""
RUNS_A_PAIR = 2.0
"""The cost of a pair where the ledger has none: its runs."""


class LedgerError(UserError, ValueError):
    """A ledger that cannot be read; the message names file, line and column."""


Value = Annotated[Number, Field(ge=-LARGEST, le=LARGEST)]
Row = TypedDict(
    "Row",
    {
        "change": Annotated[str, Field(min_length=1, max_length=500)],
        "pair": NotRequired[str | int | None],
        "with": NotRequired[Value | None],
        "without": NotRequired[Value | None],
        "cost": NotRequired[Annotated[Number, Field(ge=0, le=LARGEST)] | None],
    },
)
"""A row; further keys are ignored."""
NUMBERS = ("with", "without", "cost")


@dataclass(frozen=True)
class Pair:
    """The two runs that share a seed."""

    name: str
    treated: float
    control: float


@dataclass
class Change:
    """The runs of one change: pairs, or runs of two sides that share nothing."""

    name: str
    pairs: list[Pair] = field(default_factory=list)
    treated: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    """One number for each complete pair, or for each row."""
    incomplete: list[str] = field(default_factory=list)
    """Pairs of which a run is missing."""
    registered: list[float] | None = None
    """Of a registered study, the differences that a claim counts (`Plan.counted`), one a base policy."""

    @property
    def differences(self) -> list[float]:
        return [pair.treated - pair.control for pair in self.pairs]

    def claimed(self, planned: Sequence[str]) -> list[float]:
        """The differences that a claim counts."""
        if self.registered is not None:
            return self.registered
        of = {pair.name: pair.treated - pair.control for pair in self.pairs}
        return [of[name] for name in counted([*of], planned, self.incomplete)]


@dataclass(frozen=True)
class Ledger:
    source: str
    kind: str
    """csv, jsonl, study or the trainer whose logs they are."""
    changes: tuple[Change, ...]
    metric: str | None = None
    """The metric of the values, as this package or the trainer calls it; None: values as they are."""
    reference: str | None = None
    """The arm that changes are made to."""
    cost_unit: str = "runs"
    looks: tuple[int, ...] | None = None
    """The looks that a study registered."""
    alpha: float | None = None
    registered: bool = False
    """True: a study registered all these comparisons, as one family, before its first run."""
    planned: tuple[str, ...] = ()
    """Pairs that were named before the first run, in the order in which they count."""
    absent: int = 0
    """Comparisons of that family that have no pair yet."""
    notes: tuple[str, ...] = ()


def read_ledger(file: Path) -> Ledger:
    """Reads a ledger; `.jsonl` files as JSON lines, all others as CSV.

    Raises LedgerError in one line: the file, the line, the column and what it must be.
    """
    kind = "jsonl" if file.suffix in (".jsonl", ".ndjson") else "csv"
    changes: dict[str, Change] = {}
    lines: dict[tuple[str, str], int] = {}
    priced = None
    for number, tree in _json_rows(file) if kind == "jsonl" else _csv_rows(file):
        place = f"{file}, line {number}"
        row: Mapping[str, Any] = checked(_with_pair(tree), Row, place, LedgerError)
        change = changes.setdefault(row["change"], Change(row["change"]))
        if len(changes) > MOST_CHANGES:
            raise LedgerError(f"{file}: has more than {MOST_CHANGES:,} changes; put them into several ledgers")
        pair = None if row.get("pair") in (None, "") else str(row["pair"])
        known = row.get("cost") is not None
        if priced not in (None, known):
            raise LedgerError(f"{place}: cost is {'given' if known else 'missing'}, unlike in the lines before it")
        priced = known
        if pair is not None and (first := lines.setdefault((change.name, pair), number)) != number:
            raise LedgerError(f"{place}: pair {short(pair)} of {short(change.name)} is in line {first} already")
        _add(change, pair, row, place)
    if not changes:
        raise LedgerError(f"{file}: has no rows")
    for change in changes.values():
        values = [
            *change.treated,
            *change.control,
            *(value for pair in change.pairs for value in (pair.treated, pair.control)),
        ]
        if fault := two_units(values):
            raise LedgerError(f"{file}: {short(change.name)} {fault}")
    return Ledger(str(file), kind, tuple(changes.values()), cost_unit="of the column cost" if priced else "runs")


PERCENT = (30.0, 300.0)
"""Between these a ratio of two scores is one of percent to a share."""


def two_units(values: Sequence[float]) -> str:
    """What is wrong with scores of which some are shares and some percent; empty: nothing.

    >>> two_units([0.41, 0.39, 38.8, 41.2]), two_units([0.41, 1.0, 0.39]), two_units([0.0, 12.0, 31.0])
    ('has 0.39 beside 38.8: shares and percent; give all in one unit', '', '')
    """
    shares, others = [v for v in values if 0 < v <= 1], [v for v in values if 1 < v <= 100]
    if not shares or not others or len(shares) + len(others) < len([v for v in values if v]):
        return ""
    if all(PERCENT[0] <= other / share <= PERCENT[1] for share in shares for other in others):
        return f"has {min(shares):g} beside {min(others):g}: shares and percent; give all in one unit"
    return ""


def _add(change: Change, pair: str | None, row: Mapping[str, Any], place: str) -> None:
    treated, control = row.get("with"), row.get("without")
    if treated is None and control is None:
        raise LedgerError(f"{place}: with and without are both missing")
    if (change.treated or change.control) if pair is not None else (change.pairs or change.incomplete):
        raise LedgerError(f"{place}: pair is {'given' if pair else 'missing'}, unlike before in {short(change.name)}")
    cost = float(row["cost"]) if row.get("cost") is not None else None
    if pair is None:
        change.treated += [] if treated is None else [treated]
        change.control += [] if control is None else [control]
        change.costs.append((treated is not None) + (control is not None) if cost is None else cost)
    elif treated is None or control is None:
        change.incomplete.append(pair)
    else:
        change.pairs.append(Pair(pair, treated, control))
        change.costs.append(RUNS_A_PAIR if cost is None else cost)


def _with_pair(tree: object) -> object:
    """A row that calls its pair `seed`."""
    if isinstance(tree, Mapping) and "pair" not in tree and "seed" in tree:
        return {**tree, "pair": tree["seed"]}
    return tree


def _text(file: Path) -> str:
    try:
        return read_text(file, MOST_BYTES, LedgerError, encoding="utf-8-sig")
    except OSError as error:
        raise LedgerError(f"{file}: cannot be read ({error.strerror or error})") from None


def _json_rows(file: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(_text(file).splitlines(), 1):
        _check_length(file, number)
        if line.strip():
            tree = json_tree(line, f"{file}, line {number}", LedgerError)
            if isinstance(tree, dict):
                # JSON has one kind of number
                tree = {k: float(v) if k in NUMBERS and type(v) is int else v for k, v in tree.items()}
            yield number, tree


def _csv_rows(file: Path) -> Iterator[tuple[int, object]]:
    """Rows of a table with their lines; an empty cell is no value."""
    try:
        lines = lines_of(_text(file))
        header = [name.strip() for name in next(lines, (1, list[str]()))[1]]
        if lacking := [name for name in ("change", "with", "without") if name not in header]:
            raise LedgerError(
                f"{file}, line 1: has no column {lacking[0]}; it has {short(', '.join(header) or 'none')}"
            )
        if twice := next((name for name, times in Counter(header).items() if name and times > 1), None):
            raise LedgerError(f"{file}, line 1: has the column {twice} twice")
        if len(header) > MOST_COLUMNS:
            raise LedgerError(f"{file}, line 1: has {len(header):,} columns; at most {MOST_COLUMNS:,} are read")
        for number, cells in lines:
            _check_length(file, number)
            if len(cells) != len(header):
                raise LedgerError(f"{file}, line {number}: has {len(cells)} values for {len(header)} columns")
            row: dict[str, Any] = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
            yield number, {name: _number(value) if name in NUMBERS else value for name, value in row.items()}
    except csv.Error as error:
        raise LedgerError(f"{file}: is no CSV ({error})") from None


def is_ledger(file: Path) -> bool:
    """Whether a file has a ledger's columns; a table of results or a chart has others."""
    if file.suffix in (".jsonl", ".ndjson"):
        return True
    try:
        header = {name.strip() for name in next(lines_of(_text(file)), (1, list[str]()))[1]}
    except csv.Error:
        return True  # which says what is wrong with it
    return "change" in header or {"with", "without"} <= header


def _number(text: str) -> object:
    """A number, or the text, which the check refuses by its name."""
    try:
        found = float(text)
    except ValueError:
        return text
    return found if math.isfinite(found) else text


def _check_length(file: Path, number: int) -> None:
    if number > MOST_ROWS:
        raise LedgerError(f"{file}: has more than {MOST_ROWS:,} lines")
