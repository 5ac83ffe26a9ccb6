"""What could each technique do in this run?

    ablations advise runs/dapo/dapo/seed_0 [steps=5]
    ablations advise --from trl output/trainer_state.json --json

For each technique: its condition against what the run measured, the studies that the run resembles and what was found
there, and the command that would settle it, where the trainer has one. No effect of a study is carried over to the run.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.arguments import LOG_SYSTEMS, add_json, parser_of
from ablations.errors import UserError
from ablations.screen import on_screen
from ablations.techniques import REGISTER

if TYPE_CHECKING:
    from ablations.compare.advice import Advice


SCHEMA = "dapo_lit/advise/1"
Settling = Callable[[Path, Mapping[str, Any], Sequence["Advice"]], Iterable[str]]
"""Lines for a run, its settings and what was found: commands of the trainer that would settle it."""


def measurements(run: Path, system: str | None) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """The rows of a run, and its settings below `algorithm`, `rollout.steps_ahead`, the name of its `regime` and the
    arguments of its loss; of another trainer's log no settings are read."""
    if system:
        from ablations.read.foreign import read_run

        table = read_run(system, run).reset_index()
        return [dict(zip(table.columns, row, strict=True)) for row in table.to_numpy().tolist()], {}
    if run.is_file():
        raise UserError(
            f"{run} is a file, not the folder of a run; for another trainer's log, name the trainer: --from trl"
        )
    from ablations.files.layout import CONFIG
    from ablations.files.metrics_file import read_metrics
    from ablations.files.record import check_config, read_config, read_record
    from ablations.trainer import configs, flatten

    config = read_config(run)
    check_config(config, run / CONFIG)
    complete = configs().complete(config)
    settings = flatten(complete.get("algorithm") or {})
    settings["rollout.steps_ahead"] = (complete.get("rollout") or {}).get("steps_ahead")
    settings["regime"] = (complete.get("regime") or {}).get("name")
    settings["loss_arguments"] = read_record(run).get("loss_arguments")
    return read_metrics(run).rows, settings


@dataclass(frozen=True)
class Answer:
    """What a run says of every technique."""

    rows: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    given: Sequence["Advice"]


def asked(run: Path, steps: int | None, system: str | None) -> Answer:
    """Reads a run, or its first steps. Raises UserError: there is none, or no step yet."""
    from ablations.compare.advice import advice, findings

    rows, settings = measurements(run, system)
    rows = [row for row in rows if 0 < row["step"] <= (steps or row["step"])]
    if not rows:
        raise UserError(f"{run}: it has no step yet")
    known = findings()
    return Answer(rows, settings, [advice(technique, rows, settings, known) for technique in REGISTER])


def tree(run: Path, found: Answer, settling: Settling) -> dict[str, Any]:
    """What `--json` prints (schemas/advise.json)."""
    return {
        "schema": SCHEMA,
        "run": str(run),
        "first_step": int(found.rows[0]["step"]),
        "last_step": int(found.rows[-1]["step"]),
        "techniques": [
            {
                "technique": each.technique,
                "on": each.on,
                "can_act": each.acts,
                "amount": each.amount,
                "caution": each.caution,
                "compared": each.compared,
                "like": [asdict(study) for study in each.like],
            }
            for each in found.given
        ],
        "commands": [text.strip() for text in settling(run, found.settings, found.given) if "python" in text],
    }


def lines(run: Path, found: Answer, settling: Settling) -> Iterator[str]:
    from ablations.compare.advice import updates_of

    rows, settings, given = found.rows, found.settings, found.given
    updates = f", {updates_of(settings)} updates a step" if settings else ""
    yield f"{run}: steps {rows[0]['step']} to {rows[-1]['step']}{updates}"
    for each in given:
        can = {True: "can act", False: "has next to nothing to act on", None: "unknown"}[each.acts]
        record = REGISTER[each.technique]
        setting = "" if each.on is None else f" ({'on' if each.on else 'off'} in this run)"
        yield f"\n{record.label}{setting}: {can}"
        yield f"  {each.amount}"
        if each.acts is False and settings:
            yield f"  {record.condition.lever}"
        if each.caution:
            yield f"  {each.caution}"
        for first in each.like[:1]:
            place = f"in its regime, {each.regime}:" if each.regime else "like"
            yield f"  {place} {first}" + (f"; {len(each.like) - 1} more are alike" if each.like[1:] else "")
        if each.acts and each.compared and not each.like:
            yield "  no study of this project resembles your run in this"
    if not any(each.like for each in given):
        yield "\nNothing here resembles your run."
    sources = dict.fromkeys(REGISTER[each.technique].condition.source for each in given)
    yield f"\nThresholds are {', and '.join(sources)}."
    yield "The studies are of policies with 0.5M parameters; their effects are not your run's."
    yield from settling(run, settings, given)


def no_trainer(run: Path, settings: Mapping[str, Any], given: Sequence["Advice"]) -> tuple[str, ...]:
    """No line: nothing is known that could train the run again."""
    return ()


@on_screen()
def main(arguments: Sequence[str], settling: Settling = no_trainer) -> int:
    """Runs the command; returns its exit code."""
    parser = parser_of("advise", __doc__)
    parser.add_argument("run", type=Path, help="the folder of a run, which may still be training, or a log")
    parser.add_argument("--steps", type=int, help="only the first so many steps")
    parser.add_argument("--from", dest="system", choices=LOG_SYSTEMS, help="another trainer wrote this log")
    add_json(parser)
    options = parser.parse_args(arguments)
    try:
        found = asked(options.run, options.steps, options.system)
        if options.json == "true":
            print(json.dumps(tree(options.run, found, settling), indent=1, allow_nan=False))
        else:
            print("\n".join(lines(options.run, found, settling)))
    except UserError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    return 0
