"""The names of what is in a run folder, with the file of this room that writes and reads it.

config.yaml     the config, resolved (record.py)        overrides.txt   the command line
run.json        what the run is and how it is (record.py)
metrics.jsonl   a row a step; no row is ever rewritten (metrics_file.py)
manifest.json   checksums (manifest.py, run_manifest.py)
DONE.json       run.json again, once the run has ended
heartbeat       the process that trains it (claim.py)
checkpoints/, rollouts/, eval/, replay/: states, and tables as Parquet (tables.py)
"""

import re
from pathlib import Path

TABLES = ("rollouts/", "eval/")
RECORD, CONFIG, METRICS, HEARTBEAT, DONE = "run.json", "config.yaml", "metrics.jsonl", "heartbeat", "DONE.json"
CHECKPOINTS, ROLLOUTS, EVALUATIONS, REPLAYS = "checkpoints", "rollouts", "eval", "replay"
"""Folders."""
CELLS = "cells.parquet"
"""The finished runs of a study, packed into a folder (read/packed_cells.py)."""


def is_run(folder: Path) -> bool:
    """True if a folder holds a run or what is left of one.

    A config.yaml and a heartbeat are not a run: a process was killed while it opened a new one.
    """
    left = [name for name in (RECORD, METRICS, CONFIG) if (folder / name).exists()]
    left += [file.name for file in (folder / CHECKPOINTS).glob("step_*.ckpt")]
    return bool(left) and not (left == [CONFIG] and (folder / HEARTBEAT).exists())


def before_step(run: Path, step: int) -> Path:
    """The training state before a recorded step."""
    return run / REPLAYS / f"step_{step:06d}.ckpt"


def playable_page(run: Path, step: int) -> Path:
    """The page of a recorded step to play with, if `replay --html` has made it."""
    return run / REPLAYS / f"step_{step:06d}.html"


def kept_states(run: Path) -> list[int]:
    """The steps before which a run kept its training state, ascending."""
    names = (re.fullmatch(r"step_(\d+)\.ckpt", file.name) for file in (run / REPLAYS).glob("step_*"))
    return sorted(int(name[1]) for name in names if name)
