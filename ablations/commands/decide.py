"""Keep a change, discard it, or run more pairs? Answers from a ledger of runs with and without each change.

    ablations decide ledger.csv [price=0.001]
    ablations decide runs/my_study --for claims
    ablations decide --from trl logs --metric rewards/accuracy/mean --json

A ledger has the columns change, pair (or seed), with, without and cost; a study's folder and the logs of another
trainer are ledgers of their arms. --for tuning, the default, acts by the least expected regret at a price; --for
claims by the sequential test, which keeps its error (docs/decide.md).

Exit codes: 0 every change is to be kept or discarded; 3 some need more pairs; 2 refused, with the reason.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.arguments import LOG_SYSTEMS, add_json, parser_of
from ablations.border import is_share
from ablations.errors import UserError
from ablations.screen import on_screen, print_table, printable

if TYPE_CHECKING:
    from ablations.read.ledger import Ledger

WIDE = 160
"""Characters of a line where there is no terminal."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("decide", __doc__)
    parser.add_argument("ledgers", nargs="+", type=Path, help="a ledger as CSV or JSON lines, or folders of a study")
    parser.add_argument("--for", dest="purpose", choices=("tuning", "claims"), default="tuning")
    parser.add_argument("--price", type=float, help="the value of one unit of cost (a run), in the unit of the values")
    parser.add_argument("--most", type=int, default=24, help="the largest number of pairs for a change (24)")
    parser.add_argument(
        "--pairs", type=planned, default=(), help="for a ledger or logs: the pairs of a claim in order, such as 0-11"
    )  # fmt: skip
    parser.add_argument("--alpha", type=float, help="the error of all claims together (0.05)")
    parser.add_argument("--better", choices=("higher", "lower"), default="higher", help="which values are better")
    parser.add_argument("--from", dest="system", choices=LOG_SYSTEMS, help="the folders hold another trainer's logs")
    parser.add_argument("--metric", help="for a study or logs: the metric to decide on")
    parser.add_argument("--reference", help="for a study or logs: the arm that the others are compared with")
    parser.add_argument("--runs", type=Path, help="for logs: a table of run, arm and seed, if names are not clear")
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.price is not None and not 0 <= options.price < float("inf"):
        parser.error(f"--price is {options.price:g}; it must be 0 or more")
    if options.alpha is not None and not 0 < options.alpha < 1:
        parser.error(f"--alpha is {options.alpha:g}; it must be between 0 and 1")
    if not 1 <= options.most <= 1000:
        parser.error(f"--most is {options.most}; it must be from 1 to 1,000")
    return options


def planned(text: str) -> tuple[str, ...]:
    """The names of pairs: whole numbers from a first to a last, or names.

    >>> planned("8-11"), planned("3,7,run_b")
    (('8', '9', '10', '11'), ('3', '7', 'run_b'))
    """
    first, _, last = text.partition("-")
    names = text.split(",")
    if first.isdecimal() and last.isdecimal() and len(first) <= len(last) <= 9:
        names = list(map(str, range(int(first), min(int(last), int(first) + 1000) + 1)))
    if not all(names) or len({*names}) < len(names) or len(names) > 1000:
        raise argparse.ArgumentTypeError(f"{text!r} must be up to 1,000 different pairs, as 0-11 or 3,7,run_b")
    return tuple(names)


def read(options: argparse.Namespace) -> "Ledger":
    """The ledger that the command line names."""
    first = options.ledgers[0]
    if options.pairs and not options.system and first.is_dir():
        raise UserError(f"{first} is a study, which has registered its seeds; --pairs goes with ledgers and logs")
    if options.system or first.is_dir():
        from ablations.read import run_ledger  # loads pandas, which a ledger in a file does without

        if options.runs and not options.system:
            raise UserError(f"{first} is a study, which knows its runs; --runs goes with logs")
        if options.system:
            return run_ledger.ledger_of_logs(
                options.system, options.ledgers, options.metric, options.reference, options.runs
            )
        return run_ledger.ledger_of_study(options.ledgers, options.metric, options.reference)
    from ablations.read.ledger import is_ledger, read_ledger

    if first.is_file() and not is_ledger(first):
        from ablations.read import run_ledger

        return run_ledger.ledger_of_logs("csv", options.ledgers, options.metric, options.reference, options.runs)
    if options.runs:
        raise UserError(f"{first} is a ledger, which names its pairs; --runs goes with logs")
    if len(options.ledgers) > 1:
        raise UserError(f"{options.ledgers[1]}: one file is one ledger; put all rows into one")
    if options.metric or options.reference:
        raise UserError(f"{first} is a ledger, whose values are its own; --metric and --reference go with runs")
    return read_ledger(first)


def sentence(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """One line on one change."""
    show, claim = _Shown(answer["metric"]), row["claim"]
    unit = answer["cost_unit"] if answer["cost_unit"] in ("runs", "minutes") else "of cost"
    action = row["action"]
    if action == "more":
        action = f"{row['more_pairs']} more pair{'s' * (row['more_pairs'] > 1)} ({row['more_cost']:.3g} {unit})"
    known = f"{row['pairs']:.3g} pair{'s' * (row['pairs'] != 1)}"
    if not row["paired"]:
        known = f"unpaired runs worth {known}"
    if row["regret_now"] is None:
        risk = "too few runs to say what stopping now risks"
    else:
        risk = f"wrong sign {row['wrong_sign']:.1%}, stopping now risks {show.amount(row['regret_now'])}"
        if row["more_pairs"] and row["regret_after"] is not None:
            risk += f", after them {show.amount(row['regret_after'])}"
    verdict = claim["verdict"] if claim["at_pairs"] is None else f"{claim['verdict']} at {claim['at_pairs']} pairs"
    if claim["next_look"]:
        verdict += f", next look at {claim['next_look']} pairs"
    return f"{row['change']}: {action}; {show.signed(row['difference'])} over {known}; {risk}; claim: {verdict}"


class _Shown:
    """Values as they are printed: shares in points."""

    def __init__(self, metric: str | None) -> None:
        self.factor, self.unit = (100.0, " points") if metric and is_share(metric) else (1.0, "")

    def amount(self, value: float | None) -> str:
        return "–" if value is None else f"{self.factor * value:.2g}{self.unit}"

    def signed(self, value: float) -> str:
        return f"{self.factor * value:+.3g}{self.unit}"


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """One line a change, and what has to be known of all."""
    for row in answer["changes"]:
        yield printable(sentence(row, answer))
    factors = [row["unpaired_runs_factor"] for row in answer["changes"] if row["unpaired_runs_factor"]]
    if factors:
        middle = sorted(factors)[len(factors) // 2]
        yield f"Pairing: without it, the same precision would take {middle:.1f} times the runs."
    if not all(row["paired"] for row in answer["changes"]):
        from ablations.compare.referee import UNPAIRED_VARIANCE

        least, most = UNPAIRED_VARIANCE
        yield (
            f"Unpaired: in this project's studies, pairs with shared seeds need {least:.0f} to {most:.0f} times fewer "
            "runs; nothing is claimed without pairs."
        )
    claims = answer["purpose"] == "claims" or any(row["claim"]["at_pairs"] for row in answer["changes"])
    if claims and not answer["registered"]:
        yield (
            "A claim holds if changes, pairs (--pairs), looks and alpha were fixed before the first run; "
            "these were not registered."
        )
    yield from map(printable, answer["notes"])


@on_screen()
def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    options = parse_arguments(arguments)
    try:
        ledger = replace(read(options), planned=options.pairs)
        from ablations.compare.referee import referee  # loads numpy

        answer = referee(
            ledger,
            options.purpose,
            price=options.price,
            most=options.most,
            alpha=options.alpha,
            lower=options.better == "lower",
        )
    except UserError as reason:
        print(f"refused: {reason}", file=sys.stderr)
        return 2
    if options.json == "true":
        print(json.dumps(answer, indent=1, allow_nan=False))
    else:
        show = _Shown(answer["metric"])
        print("\n".join(lines(answer)))
        if len(answer["changes"]) > 1:
            print_table(
                ("change", "pairs", "difference", "sd", "wrong sign", "regret", "decision", "claim"),
                [
                    (
                        printable(row["change"]), f"{row['pairs']:.3g}", show.signed(row["difference"]).split()[0],
                        show.amount(row["sd"]).split()[0], f"{row['wrong_sign']:.1%}",
                        show.amount(row["regret_now"]).split()[0],
                        f"{row['more_pairs']} more" if row["more_pairs"] else row["action"], row["claim"]["verdict"],
                    )
                    for row in answer["changes"]
                ],
                left=("change", "decision", "claim"),
                width=None if sys.stdout.isatty() else WIDE,
            )  # fmt: skip
    return 3 if any(row["action"] == "more" for row in answer["changes"]) else 0
