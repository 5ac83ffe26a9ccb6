"""Logs of trainers as tables: JSON of the transformers Trainer, JSON lines, CSV, offline runs of W&B, TensorBoard."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from dapo_lit.study.read.run import StudyError


@dataclass(frozen=True, eq=False)
class Log:
    """One file."""

    KINDS: ClassVar = ("trainer_state.json", "metrics.jsonl", "*.jsonl", "*.csv", "*.wandb", "events.out.tfevents.*")
    file: Path
    rows: pd.DataFrame
    """A row for each time that something was logged, with `step`."""
    name: str = ""
    """The run's name in the file."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Flat; empty where the file has none."""


def logs_below(path: Path) -> Iterator[Log]:
    """The logs in a folder, or of a file. Of checkpoints of one run the latest counts, of several kinds the first.

    Raises StudyError: there is no such path, or a log cannot be read.
    """
    if path.is_file():
        yield _read(path)
        return
    if not path.is_dir():
        raise StudyError(f"{path}: no such file or folder")
    for kind in Log.KINDS:
        files = sorted({file.resolve(): file for file in path.rglob(kind)}.values())
        if kind == Log.KINDS[0]:
            latest = {_home(file): file for file in sorted(files, key=_checkpoint)}
            files = sorted(latest.values())
        if files:
            yield from map(_read, files)
            return


def _checkpoint(file: Path) -> int:
    """The step of the checkpoint that a file is in; that of a whole run is the latest."""
    name = file.parent.name
    return int(name.removeprefix("checkpoint-")) if name.startswith("checkpoint-") else 1 << 62


def _home(file: Path) -> Path:
    return file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent


def _read(file: Path) -> Log:
    try:
        if file.name == "trainer_state.json":
            return Log(file, pd.DataFrame(json.loads(file.read_text(encoding="utf-8"))["log_history"]))
        if file.suffix == ".jsonl":
            return _json_lines(file)
        if file.suffix == ".csv":
            return _csv(file)
        if file.suffix == ".wandb":
            return _wandb(file)
        return _tensorboard(file)
    except (ValueError, KeyError, TypeError, IndexError, OSError) as error:
        raise StudyError(f"{file}: cannot be read ({type(error).__name__}: {error})") from None


def _json_lines(file: Path) -> Log:
    """An object a line, `{"step": 1, "data": {...}}` (verl) or flat."""
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append({"step": row["step"], **row.get("data", row)})
        except (ValueError, KeyError, TypeError) as error:
            raise StudyError(f"{file}, line {number}: no JSON object with a step ({error})") from None
    return Log(file, pd.DataFrame(rows))


def _csv(file: Path) -> Log:
    rows = pd.read_csv(file, dtype={"arm": str}).rename(columns=dict.fromkeys(("Step", "_step", "global_step"), "step"))
    if "step" not in rows:
        raise StudyError(f"{file}: has no column step")
    return Log(file, rows)


BLOCK = 1 << 15
HEADER = 7
"""LevelDB's log format, which W&B writes: blocks of 32 kB; a chunk has checksum (4), length (2) and kind (1)."""


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a W&B file; a torn last one is left out."""
    if data[:4] != b":W&B":
        raise ValueError("not a file of W&B")
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block is padding
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        chunk = data[place + HEADER : place + HEADER + length]
        if kind == 0 or len(chunk) < length:
            return
        parts = chunk if kind in (1, 2) else parts + chunk  # 1: whole, 2: first, 3: middle, 4: last
        if kind in (1, 4):
            yield parts
        place += HEADER + length


def _wandb(file: Path) -> Log:
    from wandb.proto.wandb_internal_pb2 import Record

    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    name = ""
    for data in _records(file.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({"step": items.get("train/global_step", items.get("_step")), **items})
        elif kind == "run":
            name = record.run.display_name
        if kind in ("run", "config"):
            updated = record.run.config.update if kind == "run" else record.config.update
            settings |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updated}
    table = pd.DataFrame(rows).drop(columns=["train/global_step", "_step"], errors="ignore")
    # The Trainer's callback writes `train/` before every key.
    table = table.rename(columns=lambda key: key.removeprefix("train/"))
    return Log(file, table, name, {key: value for key, value in settings.items() if key != "_wandb"})


def _tensorboard(file: Path) -> Log:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # type: ignore[import-not-found]
        from tensorboard.util.tensor_util import make_ndarray  # type: ignore[import-not-found]
    except ImportError:
        raise StudyError(f"{file}: TensorBoard's files need the package tensorboard: pip install tensorboard") from None
    rows: dict[int, dict[str, Any]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            number = make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
            if getattr(number, "size", 1) == 1 and getattr(getattr(number, "dtype", None), "kind", "f") in "fiu":
                rows.setdefault(event.step, {"step": event.step})[value.tag.removeprefix("train/")] = float(number)
    return Log(file, pd.DataFrame(list(rows.values())))
