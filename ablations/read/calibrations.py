"""The stored calibration of a regime: which techniques its studies can show an effect of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ablations.read.runs import Runs, StudyError
from ablations.texts import json_tree, read_bytes
from ablations.trainer import configs

FILE = "calibration.json"
"""In the folder of a calibration; those of shipped regimes are conf/regime/<regime>.calibration.json."""


@dataclass(frozen=True)
class Admitted:
    """A stored calibration: the techniques that a regime is sensitive to."""

    regime: str
    pairs: int
    verdicts: Mapping[str, str]
    """Technique -> why the regime is not sensitive to it; empty: it is."""
    on_accuracy: Mapping[str, str] = field(default_factory=dict)
    """The same for held-out accuracy, where the regime's studies claim it."""
    controls: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Technique -> the two arms whose difference is its control, the extreme setting first."""


def read_calibration(runs: Runs, study: Path) -> Admitted | None:
    """The calibration of the regime that these runs name; None without a regime, or where none was run.

    Your own comes first, calibrate_<regime>/ next to the study (or one folder up, where cells are packed in `runs/`);
    then the one that comes with the regime.
    """
    regime = next((run.config["regime"] for run in runs if run.config.get("regime")), None)
    name = f"calibrate_{regime['name']}" if regime else ""
    places = [study.resolve().parent, study.resolve().parent.parent] if regime else []
    files = [place / name / inner / FILE for place in places for inner in ("", "runs")]
    shipped = configs().calibrations if regime else None
    files += [shipped / f"{regime['name']}.{FILE}"] if regime and shipped else []
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    try:
        tree = json_tree(read_bytes(file), file)
        rows = tree["techniques"]
        verdicts = {row["technique"]: "" if row["admitted"] else str(row["reason"]) for row in rows}
        accuracy = {row["technique"]: why for row in rows if (why := row.get("accuracy_reason")) is not None}
        controls = {row["technique"]: tuple(row["doses"][-1]["arms"]) for row in rows if row.get("doses")}
        return Admitted(str(tree["regime"]), len(tree["seeds"]), verdicts, accuracy, controls)
    except (ValueError, KeyError, TypeError) as error:
        raise StudyError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); +study=calibrate writes it"
        ) from None
