"""What could each technique do in this run? `python -m dapo_lit.advise runs/dapo/dapo/seed_0 [steps=5]`.

For each technique: its condition against what the run measured, the studies of this project that the run resembles
and what was found there, and the command that would settle it. No effect of a study is carried over to the run.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.errors import UserError
from dapo_lit.screen import indented


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = CommandParser(
        prog="python -m dapo_lit.advise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run; it may still be training")
    parser.add_argument("--steps", type=int, help="only the first so many steps")
    return parser.parse_args(arguments)


def lines(run: Path, steps: int | None) -> Iterator[str]:
    """The answer, line by line."""
    from dapo_lit.config.identity import flatten, with_defaults
    from dapo_lit.run_files import read_config, read_metrics
    from dapo_lit.study.compare.advice import advice, findings, updates_of
    from dapo_lit.techniques import REGISTER

    settings = flatten(with_defaults(read_config(run))[0]["algorithm"])
    rows = [row for row in read_metrics(run).rows if 0 < row["step"] <= (steps or row["step"])]
    if not rows:
        raise UserError(f"{run}: no step in metrics.jsonl yet")
    given = advice(rows, settings, findings())
    yield f"{run}: steps {rows[0]['step']} to {rows[-1]['step']}, {updates_of(settings)} updates a step"
    for each in given:
        can = {True: "can act", False: "has next to nothing to act on", None: "unknown"}[each.acts]
        record = REGISTER[each.technique]
        yield f"\n{record.label} ({'on' if each.on else 'off'} in this run): {can}"
        yield indented("; ".join((each.amount, *each.facts)))
        if each.acts is False:
            yield indented(record.regime.lever)
        if each.like:
            first, *others = each.like
            more = f"; {len(others)} more resemble{'s' * (len(others) == 1)} it" if others else ""
            yield indented(f"like {first.study} (experiments/{first.folder}): {first.words}{more}")
        elif each.acts:
            yield indented("no study of this project resembles your run in this")
    if not any(each.like for each in given):
        yield "\nNothing here resembles your run."
    sources = dict.fromkeys(REGISTER[each.technique].regime.source for each in given)
    yield "\n" + indented(f"What a technique needs is {'; or '.join(sources)}.", "")
    yield indented("The studies are of policies with 0.5M parameters; their effects are not your run's.", "")
    yield from forks(run, settings, [each.technique for each in given if each.acts is not False])


def forks(run: Path, settings: Mapping[str, Any], techniques: Sequence[str]) -> Iterator[str]:
    """The commands that would settle what techniques do to a run from here on."""
    from dapo_lit.runs.checkpoint_files import kept_states
    from dapo_lit.study.designs import Arm
    from dapo_lit.techniques import REGISTER

    if settings["family"] != "dapo":
        yield f"No fork: algorithm.family={settings['family']}, and a fork toggles the switches of DAPO."
    elif not kept_states(run):
        yield indented("No fork yet: this run kept no training state; train it again with 'replay.record=[4,8]'.", "")
    elif techniques:
        yield "To settle it on this run, from the states that it kept:"
        on = frozenset(technique for technique in REGISTER if settings.get(f"techniques.{technique}"))
        for technique in techniques:
            yield (
                f"  python -m dapo_lit.train -m +study=fork fork.run={run} study.until=decided "
                f"'study.arms=[{Arm(on ^ {technique}).name}]'"
            )


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    try:
        print("\n".join(lines(options.run, options.steps)))
    except UserError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
