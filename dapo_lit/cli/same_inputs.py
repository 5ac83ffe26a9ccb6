"""Before a run is opened: what it reads must be what its own earlier part, its fork's run and the other cells of its
study read (ablations/inputs.py), and its prompts are dated as theirs.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ablations.errors import DamagedError
from ablations.files.layout import RECORD
from ablations.files.record import read_config, read_record
from ablations.inputs import Inputs, differing, recorded
from dapo_lit.chat_template import today
from dapo_lit.config import Config
from dapo_lit.runs.resume import check_inputs, refuse_other_inputs

COUNTED = ("running", "preempted", "finished", "solved", "exhausted")
"""Statuses of runs that are, or may become, part of a study. A failed one will be made again."""


def prompt_day(config: Config, path: Path) -> date:
    """The date that a chat template is told: one for a run and its forks, and for all cells of a study.

    path: the run's folder. It is the day on which the run, or its study, was first started.
    """
    of = Path(config.fork.run) if config.fork else path
    record = read_record(of) if config.fork or config.resume else {}
    if known := record.get("prompt_date") or record.get("started_at"):
        return datetime.fromisoformat(str(known)).date()
    if config.study is not None:
        from ablations.read.registration import entries_in_force, read_entries

        folder, packed = path.parent.parent, config.own_study.packed
        entries = entries_in_force(folder, Path(packed) if packed else None) or read_entries(folder)
        if entries and entries[0].get("at"):
            return datetime.fromisoformat(str(entries[0]["at"])).date()
    return today()


def check_same_inputs(config: Config, path: Path, inputs: Inputs) -> None:
    """Compares what a run would read with what is recorded next to it.

    Raises ConfigError: something has changed under the same settings; the message names it.
    """
    tree = config.model_dump(mode="json")
    if config.resume and (path / RECORD).is_file():
        check_inputs(path, tree, inputs, "start a new run with resume=false")
    if config.fork:
        check_inputs(Path(config.fork.run), tree, inputs, "fork a run that read what is there now")
    for name, record, other in _cells(config, path) if config.study else ():
        if record.get("status") in COUNTED and differing(recorded(record), inputs):
            refuse_other_inputs(name, record, other(), tree, inputs, "give the study a name of its own, study_name=...")


def _cells(config: Config, path: Path) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """The other cells of the run's study, on disk and packed: name, run.json, and a function that reads the config."""

    for file in sorted(path.parent.parent.glob(f"*/seed_*/{RECORD}")):
        if file.parent != path:
            with suppress(DamagedError):  # a report names it
                yield str(file.parent), read_record(file.parent), lambda run=file.parent: read_config(run)
    if config.own_study.packed is None:
        return
    from ablations.read.packed_cells import read_cells

    for cell in read_cells(Path(config.own_study.packed)):
        name = f"{config.own_study.packed}/{cell.arm}/seed_{cell.seed}"
        yield name, cell.record, lambda tree=cell.config: tree
