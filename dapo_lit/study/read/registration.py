"""What a study promised before its first run, and what was changed afterwards.

`register` writes study.json into the study's folder when the first run starts. A plan that differs later is appended
with its date and never replaces the first; the report compares the two.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dapo_lit.files import write_text
from dapo_lit.study.read.runs import Runs, StudyError

FILE = "study.json"


@dataclass(frozen=True)
class Plan:
    """A study's promises; None where it promises nothing."""

    study: str
    metric: str | None = None
    """The primary metric."""
    reference: str | None = None
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    bases: tuple[int, ...] = ()
    """Base policies that the seeds take in turn; empty: each seed has its own."""
    family: str | None = None
    """The family of comparisons that the study decides, unless it has an event; None: the report's choice."""
    budget: Mapping[str, float | None] | None = None
    """Limits on steps, tokens_generated and wall_s; a run ends at the first that it reaches."""
    alpha: float = 0.05
    declared: tuple[str, ...] = ()
    """Config keys in which arms may differ, in addition to the switches."""
    event: Mapping[str, Any] | None = None
    """A time-to-event outcome: key (task/steps_frac), threshold (0.5), treated and control arm, horizon in steps."""

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> "Plan":
        """A plan from a study file's keys.

        Raises:
            StudyError: unknown keys, or no `study`.
        """
        unknown = set(tree) - set(cls.__dataclass_fields__)
        if unknown or "study" not in tree:
            raise StudyError(f"a study's plan: unknown keys {sorted(unknown)}, study={tree.get('study')!r}")
        lists = {key: tuple(tree[key] or ()) for key in ("arms", "seeds", "bases", "declared") if key in tree}
        return cls(**{**tree, **lists})


def register(folder: Path, plan: Plan) -> None:
    """Writes the plan into the study's folder, or appends it if it differs from the last one there."""
    file = folder / FILE
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"at": now, "plan": json.loads(json.dumps(asdict(plan)))}
    entries = json.loads(file.read_text()) if file.is_file() else []
    if entries and entries[-1]["plan"] == entry["plan"]:
        return
    write_text(file, json.dumps([*entries, entry], indent=1) + "\n")


def read_plan(folder: Path) -> tuple[Plan | None, list[str]]:
    """The plan as it was first registered, and what was edited after that (one sentence a changed key).

    Raises:
        StudyError: study.json is there and cannot be read.
    """
    file = folder / FILE
    if not file.is_file():
        return None, []
    try:
        entries = json.loads(file.read_text())
        first = Plan.read(entries[0]["plan"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise StudyError(f"{file}: cannot be read ({type(error).__name__}: {error})") from None
    edits = []
    for before, after in itertools.pairwise(entries):
        for key in sorted(set(before["plan"]) | set(after["plan"])):
            old, new = before["plan"].get(key), after["plan"].get(key)
            if old != new:
                edits.append(f"{key} was changed at {after['at']} from {old} to {new}")
    return first, edits


def last_plan(folder: Path) -> Plan | None:
    """The plan as it was last registered; None where there is none.

    Raises:
        StudyError: study.json is there and cannot be read.
    """
    first, _ = read_plan(folder)
    return first and Plan.read(json.loads((folder / FILE).read_text())[-1]["plan"])


def late_registration(folder: Path, runs: Runs) -> str | None:
    """A sentence if the plan was registered after the first run had started."""
    file = folder / FILE
    if not file.is_file():
        return "no plan was registered before the first run"
    at = str(json.loads(file.read_text())[0]["at"])
    starts = [str(run.record["started_at"]) for run in runs if run.record.get("started_at")]
    if starts and min(map(_moment, starts)) < _moment(at):
        return f"the plan was registered at {at}, after the first run had started ({min(starts)})"
    return None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
