"""Score a file of answers and say where the verifier is wrong, or try a reward function of your own.

    python -m dapo_lit.check_rewards FILE.jsonl [rule=sympy] [extraction=auto] [deadline_s=2] [workers=2] [show=20]
    python -m dapo_lit.check_rewards [FILE.jsonl] function=my_module.my_reward

`function` is what `reward.function` takes. It is tried on reference answers and junk, as before a run, and then scores
the rows instead of a rule; without a file it is tried on four sums. Columns of a row other than these are its `meta`.

A row has `pred` (a response or an answer), `gold` (the reference) and, where the verdict is to be checked, `equal`
(true or false); a file of a run's rollouts has `response`, `answer` and `correct` for these, so that the run's rule is
compared with others. A row with a non-empty `ambiguous` is scored but not counted. Prints agreement, false positives
and negatives, timeouts, answers per second, and the rows that disagree. `rule=dapo,sympy` scores both side by side and
prints the rows on which the rules differ.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import BadRows, DataError
from dapo_lit.data.rows import Row as Record
from dapo_lit.data.rows import read_rows as read_records
from dapo_lit.errors import UserError
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.verifier import Reference, Verifier
from dapo_lit.screen import print_table
from math_answers.extraction import Extraction
from math_answers.rules import Rule

Kind = Literal["false positive", "false negative"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OWN = ("pred", "gold", "equal", "ambiguous", "problem", "response", "answer", "correct")
"""Columns that are not passed on to a reward function as `meta`."""
WIDTH = 46
"""Characters of an answer that a table shows."""


@dataclass(frozen=True)
class Row:
    line: str
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


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with one line for an unknown key or a value that does not fit."""
    parser = CommandParser(prog="python -m dapo_lit.check_rewards", description=__doc__)
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
    return given


def read_rows(file: Path) -> list[Row]:
    bad_rows, rows = BadRows(), list[Row]()
    try:
        for record in read_records(file, bad_rows):
            with bad_rows:
                rows.append(_row(record))
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    bad_rows.check(len(rows))
    if not rows:
        raise DataError(f"{file}: no rows")
    return rows


def _row(record: Record) -> Row:
    named = record.fields
    pred, gold, equal = (
        named.get(key, named.get(recorded))
        for key, recorded in (("pred", "response"), ("gold", "answer"), ("equal", "correct"))
    )
    if not isinstance(pred, str) or not isinstance(gold, str):
        raise record.error("`pred` and `gold` must be texts")
    if equal is not None and not isinstance(equal, bool):
        raise record.error(f"`equal` must be true or false, not {equal!r}")
    meta = {key: value for key, value in record.fields.items() if key not in OWN}
    counted = None if record.fields.get("ambiguous") else equal
    return Row(record.place.split()[1], pred, gold, counted, str(record.fields.get("problem", "")), meta)


def open_verifier(rule: Rule, options: argparse.Namespace) -> Verifier:
    try:
        return Verifier(
            rule=rule,
            extraction=options.extraction,
            deadline_s=options.deadline_s,
            workers=options.workers,
            function=options.function,
        )
    except ValueError as error:
        raise UserError(f"function={options.function}: {error}") from None


def score_rows(rows: Sequence[Row], rule: Rule, options: argparse.Namespace) -> Report:
    with open_verifier(rule, options) as verifier:
        pairs = [(Reference(row.line, row.gold, row.problem, row.meta), row.pred) for row in rows]
        start = time.perf_counter()
        scores = verifier.score(pairs)
        return Report(options.function or rule, scores, time.perf_counter() - start)


def try_function(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Tries the function as a run does before its first step, on the rows' references or on four sums."""
    from dapo_lit.preflight.problems import try_rewards  # loads torch
    from dapo_lit.tasks import four_sums

    references = [Problem(row.line, row.problem, row.gold, row.meta) for row in rows] or four_sums.problems()
    with open_verifier("numeric", options) as verifier:
        finding = try_rewards(verifier, references, options.extraction)
    print("\n".join([finding.words, *(f"warning: {warning}" for warning in finding.warnings)]))


def print_summary(rows: Sequence[Row], reports: Sequence[Report]) -> None:
    """Prints one line a rule."""
    counted = sum(row.equal is not None for row in rows)
    header = ("rule", "rows", "counted", "agreement", "false pos.", "false neg.", "timeouts", "errors", "answers/s")
    lines = []
    for report in reports:
        wrong = [len(report.errors(rows, kind)) for kind in KINDS]
        agreement = f"{1 - sum(wrong) / counted:.1%}" if counted else "-"
        late, failed = (
            sum(map(bool, kind)) for kind in zip(*((s.timed_out, s.error) for s in report.scores), strict=True)
        )
        rate = f"{len(rows) / report.seconds:,.0f}"
        lines.append((report.rule, *map(str, (len(rows), counted, agreement, *wrong, late, failed, rate))))
    print_lines(header, lines)


def disagreements(rows: Sequence[Row], report: Report) -> list[tuple[str, ...]]:
    """The rows on which the verdict is not `equal`: line, verdict, answer found, gold."""
    return [
        (rows[index].line, kind, report.scores[index].answer or "(none)", rows[index].gold)
        for kind in KINDS
        for index in report.errors(rows, kind)
    ]


def differences(rows: Sequence[Row], reports: Sequence[Report]) -> list[tuple[str, ...]]:
    """The rows on which the rules differ: line, the verdict of each, `equal`, answer found, gold."""
    said: Mapping[bool | None, str] = {True: "right", False: "wrong", None: "?"}
    found = []
    for index, row in enumerate(rows):
        verdicts = [report.scores[index].correct for report in reports]
        if len(set(verdicts)) > 1:
            answer = reports[0].scores[index].answer or "(none)"
            found.append((row.line, *(said[verdict] for verdict in (*verdicts, row.equal)), answer, row.gold))
    return found


def print_lines(columns: Sequence[str], lines: Sequence[Sequence[str]], show: int | None = None) -> None:
    """Prints the first lines of a table without a frame, long cells cut."""
    if not lines:
        print("none")
        return
    shown = [list(map(_cut, line)) for line in lines[:show]]
    print_table(columns, shown, left=columns, box=None, pad_edge=False, width=9 * WIDTH)
    if len(lines) > len(shown):
        print(f"... and {len(lines) - len(shown)} more (show={len(lines)} prints all)")


def _cut(text: str) -> str:
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
    print_summary(rows, reports)
    for report in reports:
        if any(row.equal is not None for row in rows):
            print(f"\nRows on which {report.rule} disagrees with `equal`:")
            print_lines(("line", "verdict", "answer found", "gold"), disagreements(rows, report), options.show)
    if len(reports) > 1:
        print("\nRows on which the rules differ:")
        columns = ("line", *(report.rule for report in reports), "equal", "answer found", "gold")
        print_lines(columns, differences(rows, reports), options.show)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
