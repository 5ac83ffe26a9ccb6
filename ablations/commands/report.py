"""Writes the report of a finished study and prints its first page.

    ablations report runs/table1 [output=DIR] [--json]
    ablations report --from trl logs [--metric rewards/accuracy/mean] [--runs runs.csv]

Exit codes: 0 every cell of the study is there; 3 written, but cells are missing or logs left out;
2 refused, with the reason.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ablations.arguments import LOG_SYSTEMS, add_json, parser_of
from ablations.command_text import command
from ablations.errors import UserError
from ablations.screen import on_screen, printable


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("report", (__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="+", type=Path, help="the study's folder, live or packed; several are read as one study"
    )
    parser.add_argument("--output", "--out", type=Path, help="where the report goes; default: <first folder>/report")
    parser.add_argument(
        "--from", dest="system", choices=LOG_SYSTEMS, help="the folders hold logs that another trainer wrote"
    )
    parser.add_argument("--metric", help="with --from: the primary metric, as the trainer calls it")
    parser.add_argument("--runs", type=Path, help="with --from: a table of run, arm and seed, if names are not clear")
    add_json(parser)
    options = parser.parse_args(arguments)
    if options.runs and not options.system:
        parser.error("--runs goes with --from; a study knows its runs")
    if options.metric and not options.system:
        parser.error("--metric goes with --from; a study names its own metric (study.metric)")
    return options


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(given)
    typed = command("report", *given)
    first = options.folders[0]  # a table of finished runs may be one file
    out = options.output or (first.parent if first.is_file() else first) / "report"
    from ablations.report.report import (
        as_json,
        make_report,
    )  # loads matplotlib, so only once the command line is checked

    metric: str | None = None
    notes: list[str] = []
    left_out: list[str] = []
    try:
        if options.system:
            from ablations.read.foreign import import_runs

            metric, notes, left_out = import_runs(
                options.system, options.folders, out / "imported", options.metric, options.runs
            )
            notes += [f"Left out: {reason}" for reason in left_out]
            options.folders = [out / "imported"]
        with Console(stderr=True).status("reading the runs"):  # shows nothing where there is no terminal
            results, found = make_report(options.folders, out, typed, metric, notes)
    except UserError as reason:
        print(f"refused: {reason}", file=sys.stderr)
        return 2
    missing = {} if options.system else results.missing  # elsewhere nobody planned every seed of every arm
    if options.json == "true":
        absent = [{"arm": arm, "seed": seed, "reason": why} for (arm, seed), why in missing.items()]
        told = {
            "report": str(out / "report.html"),
            "missing": absent,
            "notes": notes,
            "warnings": results.runs.warnings,
        }
        print(json.dumps(as_json(results) | told, indent=1, allow_nan=False))
    else:
        print("\n".join([*found, *notes]), f"report: {out / 'report.html'}", sep="\n")
    for warning in results.runs.warnings:
        print(warning, file=sys.stderr)
    for (arm, seed), why in missing.items():
        print(printable(f"missing: {arm}/seed_{seed}: {why}"), file=sys.stderr)
    return 3 if missing or left_out or results.runs.unreadable else 0
