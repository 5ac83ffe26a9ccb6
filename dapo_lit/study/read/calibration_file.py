"""Finds and reads the calibration of the regime that a study ran in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dapo_lit.study.read.runs import Runs, StudyError

FILE = "calibration.json"


@dataclass(frozen=True)
class Admitted:
    """What a calibration says about each technique."""

    regime: str
    pairs: int
    verdicts: Mapping[str, str]
    """Technique -> why the regime cannot tell; empty: it can."""
    on_accuracy: Mapping[str, str] = field(default_factory=dict)
    """The same for held-out accuracy, where the regime's studies claim it."""


def read_calibration(runs: Runs, study: Path) -> Admitted | None:
    """The calibration of the regime that these runs name; None without a regime, or where none was run.

    It is looked for as calibrate_<regime>/ next to the study (or one folder up, where cells are packed in `runs/`), and
    below experiments/.

    Raises:
        StudyError: the file is there and cannot be read.
    """
    regime = next((run.config["regime"] for run in runs if run.config.get("regime")), None)
    if regime is None:
        return None
    name = f"calibrate_{regime['name']}"
    places = [study.resolve().parent, study.resolve().parent.parent, Path("experiments")]
    files = [place / name / inner / FILE for place in places for inner in ("", "runs")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    try:
        tree = json.loads(file.read_text())
        verdicts = {row["technique"]: "" if row["admitted"] else str(row["reason"]) for row in tree["techniques"]}
        accuracy = {
            row["technique"]: row["accuracy_reason"]
            for row in tree["techniques"]
            if row.get("accuracy_reason") is not None
        }
        return Admitted(str(tree["regime"]), len(tree["seeds"]), verdicts, accuracy)
    except (ValueError, KeyError, TypeError) as error:
        raise StudyError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); +study=calibrate writes it"
        ) from None
