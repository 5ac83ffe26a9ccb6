"""What could each technique do in this run? `python -m dapo_lit.advise runs/dapo/dapo/seed_0 [steps=5]`.

For each technique: its condition against what the run measured, the studies of this project that the run resembles
and what was found there, and the command that would settle it. No effect of a study is carried over to the run.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dapo_lit.cli.arguments import CommandParser
from dapo_lit.errors import UserError
from dapo_lit.screen import indented
from dapo_lit.techniques import REGISTER


def lines(run: Path, steps: int | None) -> Iterator[str]:
    """The answer, line by line."""
    from dapo_lit.config.identity import flatten, with_defaults
    from dapo_lit.run_files import read_config, read_metrics
    from dapo_lit.runs.checkpoint_files import kept_states
    from dapo_lit.study.compare.advice import advice, findings, updates_of
    from dapo_lit.study.designs import Arm

    settings = flatten(with_defaults(read_config(run))[0]["algorithm"])
    rows = [row for row in read_metrics(run).rows if 0 < row["step"] <= (steps or row["step"])]
    if not rows:
        raise UserError(f"{run}: no step in metrics.jsonl yet")
    known = findings()
    given = [advice(technique, rows, settings, known) for technique in REGISTER]
    yield f"{run}: steps {rows[0]['step']} to {rows[-1]['step']}, {updates_of(settings)} updates a step"
    for each in given:
        can = {True: "can act", False: "has next to nothing to act on", None: "unknown"}[each.acts]
        record = REGISTER[each.technique]
        yield f"\n{record.label} ({'on' if each.on else 'off'} in this run): {can}"
        yield indented(each.amount)
        if each.acts is False:
            yield indented(record.regime.lever)
        for first in each.like[:1]:
            yield indented(f"like {first}" + (f"; {len(each.like) - 1} more are alike" if each.like[1:] else ""))
        if each.acts and not each.like:
            yield indented("no study of this project resembles your run in this")
    if not any(each.like for each in given):
        yield "\nNothing here resembles your run."
    sources = dict.fromkeys(REGISTER[each.technique].regime.source for each in given)
    yield "\n" + indented(f"Thresholds are {', and '.join(sources)}.", "")
    yield indented("The studies are of policies with 0.5M parameters; their effects are not your run's.", "")
    if settings["family"] != "dapo":
        yield f"No fork: algorithm.family={settings['family']}, and a fork toggles the switches of DAPO."
    elif not kept_states(run):
        yield indented("No fork yet: this run kept no training state; train it again with 'replay.record=[4,8]'.", "")
    else:
        yield "To settle it on this run, from the states that it kept:"
        on = frozenset(each.technique for each in given if each.on)
        for arm in (Arm(on ^ {each.technique}).name for each in given if each.acts is not False):
            fork = f"python -m dapo_lit.train -m +study=fork fork.run={run} study.until=decided"
            yield f"  {fork} 'study.arms=[{arm}]'"


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        prog="python -m dapo_lit.advise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run; it may still be training")
    parser.add_argument("--steps", type=int, help="only the first so many steps")
    options = parser.parse_args(arguments)
    try:
        print("\n".join(lines(options.run, options.steps)))
    except UserError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
