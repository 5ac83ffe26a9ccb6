"""Scores a file of answers by several rules, or by a reward function of your own, and prints where verdicts differ.

    python docs/examples/check_rewards.py answers.jsonl --rules dapo,sympy --extraction answer_line
    python docs/examples/check_rewards.py [answers.jsonl] --function my_module.my_reward

A row has `pred` (a response or an answer), `gold` (the reference) and, where the verdict is known, `equal` (true or
false); a file of a run's rollouts has `response`, `answer` and `correct` for these, so that the run's rule is compared
with others. A row with a non-empty `ambiguous` is scored and not counted. Other columns are the `meta` of a function,
which is first tried on reference answers and junk, as before a run; without a file, on four sums.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple, get_args

from ablations.errors import UserError
from ablations.screen import print_table
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import BadRows, read_rows
from dapo_lit.data.rows import Row as Record
from dapo_lit.preflight.problems import try_rewards
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.tasks import four_sums
from math_answers.extraction import Extraction
from math_answers.rules import Rule

OWN = ("pred", "gold", "equal", "ambiguous", "problem", "response", "answer", "correct")
"""Columns that are not passed on to a function as `meta`."""
PLAIN = {"box": None, "pad_edge": False, "width": 200}
SAID = {True: "right", False: "wrong", None: "?"}


class Row(NamedTuple):
    reference: RewardProblem
    """Named by the line of the row."""
    pred: str
    equal: bool | None
    """None: unknown or ambiguous."""


def row_of(record: Record) -> Row:
    fields = record.fields
    pred, gold, equal = (fields.get(key, fields.get(other)) for key, other in zip(OWN[:3], OWN[5:], strict=True))
    if not isinstance(pred, str) or not isinstance(gold, str):
        raise record.error("`pred` and `gold` must be texts")
    if equal is not None and not isinstance(equal, bool):
        raise record.error(f"`equal` must be true or false, not {equal!r}")
    meta = {key: value for key, value in fields.items() if key not in OWN}
    reference = RewardProblem(record.place.split()[1], str(fields.get("problem", "")), gold, meta)
    return Row(reference, pred, None if fields.get("ambiguous") else equal)


def read(file: Path) -> list[Row]:
    bad_rows, rows = BadRows(), list[Row]()
    for record in read_rows(file, bad_rows):
        with bad_rows:
            rows.append(row_of(record))
    bad_rows.check(len(rows))
    return rows


def summary(name: str, rows: Sequence[Row], scores: Sequence[Score], seconds: float) -> list[str]:
    counted = [(row.equal, score.correct) for row, score in zip(rows, scores, strict=True) if row.equal is not None]
    false = [sum(correct is kind and equal is not kind for equal, correct in counted) for kind in (True, False)]
    agreement = f"{1 - sum(false) / len(counted):.1%}" if counted else "-"
    late, failed = sum(score.timed_out for score in scores), sum(score.error is not None for score in scores)
    counts = (len(rows), len(counted), agreement, *false, late, failed, f"{len(rows) / seconds:,.0f}")
    return [name, *map(str, counts)]


def disagreements(rows: Sequence[Row], found: Sequence[Sequence[Score]]) -> list[list[str]]:
    """The rows on which the rules differ from `equal`, or from each other."""
    lines = []
    for row, scores in zip(rows, zip(*found, strict=True), strict=True):
        verdicts = [score.correct for score in scores]
        if len({*verdicts, *([] if row.equal is None else [row.equal])}) > 1:
            said = [SAID[verdict] for verdict in (*verdicts, row.equal)]
            lines.append([row.reference.id, *said, cut(scores[0].answer or "(none)"), cut(row.reference.answer)])
    return lines


def cut(text: str) -> str:
    """An answer as a table shows it."""
    return shorten(" ".join(text.split()).encode("utf-8", "replace").decode(), 46, placeholder=" ...")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rules", default="sympy", help=f"one or several of {', '.join(get_args(Rule))}")
    parser.add_argument("--extraction", default="auto", choices=get_args(Extraction))
    parser.add_argument("--function", help="decides instead of a rule, as reward.function takes it")
    parser.add_argument("--show", type=int, default=20, help="disagreements printed")
    options = parser.parse_args(arguments)
    names = [options.function] if options.function else options.rules.split(",")
    if not options.function and not set(names) <= set(get_args(Rule)):
        parser.error(f"--rules {options.rules}: a rule is one of {', '.join(get_args(Rule))}")
    if options.file is None and not options.function:
        parser.error("a file is needed, or --function")
    try:
        rows, found, table = read(options.file) if options.file else [], list[list[Score]](), list[list[str]]()
        for name in names:
            rule = "numeric" if options.function else name
            with Verifier(rule=rule, extraction=options.extraction, function=options.function) as verifier:
                if options.function:
                    problems = [Problem(r.id, r.problem, r.answer, r.meta) for r, *_ in rows] or four_sums.problems()
                    finding = try_rewards(verifier, problems, options.extraction)
                    print("\n".join([finding.words, *finding.warnings]))
                started = time.perf_counter()
                found.append(verifier.score([(row.reference, row.pred) for row in rows]))
                table.append(summary(name, rows, found[-1], time.perf_counter() - started))
    except (UserError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if rows:
        columns = ("rule", "rows", "counted", "agreement", "false pos.", "false neg.", "late", "errors", "answers/s")
        print_table(columns, table, left=columns, **PLAIN)
        lines = disagreements(rows, found)
        columns = ("line", *names, "equal", "answer found", "gold")
        print_table(columns, lines[: options.show], left=columns, **PLAIN)
        print(f"{len(lines)} rows on which they differ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
