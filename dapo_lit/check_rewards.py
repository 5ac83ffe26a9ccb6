"""Score a file of answers and say where the verifier is wrong, or try a reward function of your own.

    python -m dapo_lit.check_rewards FILE.jsonl [rule=sympy] [extraction=auto] [deadline_s=2] [workers=2] [show=20]
    python -m dapo_lit.check_rewards [FILE.jsonl] function=my_module.my_reward

`function` is what `reward.function` takes. It is tried on reference answers and junk, as before a run, and then scores
the rows instead of a rule; without a file it is tried on four sums. Columns of a row other than these are its `meta`.

A row has `pred` (a response or an answer), `gold` (the reference) and, where the verdict is to be checked, `equal`
(true or false). A row with a non-empty `ambiguous` is scored but not counted. Prints agreement, false positives and
negatives, timeouts, answers per second, and the rows that disagree. `rule=dapo,sympy` scores both side by side and
prints the rows on which the rules differ.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.data.problem import Problem
from dapo_lit.errors import UserError
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.verifier import Reference, Verifier
from math_answers.extraction import Extraction
from math_answers.rules import Rule

Kind = Literal["false positive", "false negative"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OWN = ("pred", "gold", "equal", "ambiguous", "problem")
"""Columns that are not passed on to a reward function as `meta`."""
WIDTH = 46
"""Characters of an answer that a table shows."""


class UsageError(UserError):
    """The command line or the file cannot be used; the message says where and why."""


@dataclass(frozen=True)
class Options:
    file: Path | None
    """None: try the function only."""
    rules: tuple[Rule, ...] = ("sympy",)
    extraction: Extraction = "auto"
    deadline_s: float = 2.0
    workers: int = 2
    show: int = 20
    """Disagreements printed."""
    function: str | None = None
    """A reward function that decides instead of a rule."""


@dataclass(frozen=True)
class Row:
    line: int
    pred: str
    gold: str
    equal: bool | None
    """None: unknown or ambiguous, not counted."""
    problem: str = ""
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    rule: str
    """The name of the rule or of the reward function."""
    scores: list[Score]
    seconds: float

    def errors(self, rows: Sequence[Row], kind: Kind) -> list[int]:
        """Indices of the rows on which the verdict and `equal` differ in this direction."""
        wanted = kind == "false negative"
        return [
            index
            for index, (row, score) in enumerate(zip(rows, self.scores, strict=True))
            if row.equal is wanted and score.correct is not wanted
        ]


def parse_options(arguments: Sequence[str]) -> Options:
    """The command line; exits with one line for an unknown key or a value that does not fit."""
    parser = CommandParser(
        prog="python -m dapo_lit.check_rewards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rule", default="sympy", help=f"one or several of {', '.join(get_args(Rule))}")
    parser.add_argument("--extraction", default="auto", choices=get_args(Extraction))
    parser.add_argument(
        "--function", help="a reward function that decides instead of a rule, as reward.function takes it"
    )
    parser.add_argument("--deadline-s", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", type=int, default=20, help="disagreements printed")
    given = parser.parse_args(arguments)
    if given.file is None and given.function is None:
        parser.error("a file is needed, or function=")
    given.rules = tuple(given.__dict__.pop("rule").split(","))
    if unknown := [rule for rule in given.rules if rule not in get_args(Rule)]:
        parser.error(f"rule={unknown[0]}: a rule is one of {', '.join(get_args(Rule))}")
    return Options(**vars(given))


def read_rows(file: Path) -> list[Row]:
    """Raises UsageError with file, line and reason."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # splitlines() would cut at U+2028 inside a text
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from None
    rows = [_read_row(file, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise UsageError(f"{file}: no rows")
    return rows


def _read_row(file: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}:{number}: no JSON: {error}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{file}:{number}: an object with pred and gold is wanted, not {type(row).__name__}")
    for key in ("pred", "gold"):
        if not isinstance(row.get(key), str):
            raise UsageError(f"{file}:{number}: {key} must be a text, not {json.dumps(row.get(key))[:60]}")
    equal = row.get("equal")
    if equal is not None and not isinstance(equal, bool):
        raise UsageError(f"{file}:{number}: equal must be true or false, not {json.dumps(equal)[:60]}")
    meta = {key: value for key, value in row.items() if key not in OWN}
    problem = str(row.get("problem", ""))
    return Row(number, row["pred"], row["gold"], None if row.get("ambiguous") else equal, problem, meta)


def open_verifier(rule: Rule, options: Options) -> Verifier:
    """Raises UsageError for a function whose module is not there."""
    try:
        return Verifier(
            rule=rule,
            extraction=options.extraction,
            deadline_s=options.deadline_s,
            workers=options.workers,
            function=options.function,
        )
    except ValueError as error:
        raise UsageError(f"function={options.function}: {error}") from None


def score_rows(rows: Sequence[Row], rule: Rule, options: Options) -> Report:
    with open_verifier(rule, options) as verifier:
        pairs = [(Reference(str(row.line), row.gold, row.problem, row.meta), row.pred) for row in rows]
        start = time.perf_counter()
        scores = verifier.score(pairs)
        return Report(options.function or rule, scores, time.perf_counter() - start)


def try_function(rows: Sequence[Row], options: Options) -> None:
    """Tries the function as a run does before its first step, on the rows' references or on four sums."""
    from dapo_lit.preflight.problems import try_rewards  # loads torch
    from dapo_lit.tasks import four_sums

    references = [Problem(str(row.line), row.problem, row.gold, row.meta) for row in rows] or four_sums.problems()
    with open_verifier("numeric", options) as verifier:
        finding = try_rewards(verifier, references, options.extraction)
    print("\n".join([finding.words, *(f"warning: {warning}" for warning in finding.warnings)]))


def summary(rows: Sequence[Row], reports: Sequence[Report]) -> str:
    """One line a rule."""
    counted = sum(row.equal is not None for row in rows)
    header = ("rule", "rows", "counted", "agreement", "false pos.", "false neg.", "timeouts", "errors", "answers/s")
    lines: list[tuple[str, ...]] = [header]
    for report in reports:
        positives = len(report.errors(rows, "false positive"))
        negatives = len(report.errors(rows, "false negative"))
        agreement = f"{1 - (positives + negatives) / counted:.1%}" if counted else "-"
        timeouts = sum(score.timed_out for score in report.scores)
        failed = sum(score.error is not None for score in report.scores)
        rate = f"{len(rows) / report.seconds:,.0f}"
        lines.append(
            (report.rule, *map(str, (len(rows), counted, agreement, positives, negatives, timeouts, failed, rate)))
        )
    return _table(lines)


def disagreements(rows: Sequence[Row], report: Report, show: int) -> str:
    """The rows on which the verdict is not `equal`."""
    lines: list[tuple[str, ...]] = [("line", "verdict", "answer found", "gold")]
    for kind in KINDS:
        for index in report.errors(rows, kind):
            answer = report.scores[index].answer
            lines.append((str(rows[index].line), kind, "(none)" if answer is None else answer, rows[index].gold))
    return _shortened(lines, show)


def differences(rows: Sequence[Row], reports: Sequence[Report], show: int) -> str:
    """The rows on which the rules differ."""
    lines = [("line", *(report.rule for report in reports), "equal", "answer found", "gold")]
    said: Mapping[bool | None, str] = {True: "right", False: "wrong", None: "?"}
    for index, row in enumerate(rows):
        verdicts = [report.scores[index].correct for report in reports]
        if len(set(verdicts)) > 1:
            answer = reports[0].scores[index].answer or "(none)"
            lines.append((str(row.line), *(said[verdict] for verdict in verdicts), said[row.equal], answer, row.gold))
    return _shortened(lines, show)


def _shortened(lines: list[tuple[str, ...]], show: int) -> str:
    if len(lines) == 1:
        return "none"
    more = len(lines) - 1 - show
    return _table(lines[: show + 1]) + (f"\n... and {more} more (show={len(lines) - 1} prints all)" if more > 0 else "")


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    cells = [[_cell(cell) for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _cell(text: str) -> str:
    text = " ".join(text.split()).encode("utf-8", "replace").decode()
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def main(arguments: Sequence[str]) -> int:
    try:
        options = parse_options(arguments)
        rows = read_rows(options.file) if options.file else []
        if options.function is not None:
            try_function(rows, options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not rows:
        return 0
    reports = [score_rows(rows, rule, options) for rule in options.rules[: 1 if options.function else None]]
    print(summary(rows, reports))
    for report in reports:
        if any(row.equal is not None for row in rows):
            print(f"\nRows on which {report.rule} disagrees with `equal`:")
            print(disagreements(rows, report, options.show))
    if len(reports) > 1:
        print("\nRows on which the rules differ:")
        print(differences(rows, reports, options.show))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
