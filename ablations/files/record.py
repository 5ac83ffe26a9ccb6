"""run.json and config.yaml: what a run is, and the config that it was started with."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import with_config
from typing_extensions import TypedDict  # pydantic's until Python 3.12

from ablations.border import OPEN, Day, Flag, FolderName, Moment, Seed, Step, Whole, checked
from ablations.errors import DamagedError
from ablations.files.atomic import write_text
from ablations.files.layout import CONFIG, RECORD
from ablations.files.manifest import MANIFEST, RESTORE, check_file, read_manifest, sealed, unsealed
from ablations.texts import json_tree, read_bytes, read_text, yaml_tree
from ablations.trainer import configs


@with_config(OPEN)
class Origin(TypedDict):
    """The training state that a fork continues."""

    run: str
    step: Step
    state: str | None


@with_config(OPEN)
class Problems(TypedDict, total=False):
    """What the run reads, in numbers: `SelectionReport.counts`."""

    train: Whole
    heldout: Whole
    long: Whole
    long_heldout: Whole
    duplicates: dict[str, Whole]
    """Counts of rows, and of problems that were repeated or left out, where task.deduplicate=true."""


@with_config(OPEN)
class Record(TypedDict, total=False):
    """run.json, as far as anything reads it; later versions may record more. Packed cells add the last two."""

    study: str
    arm: FolderName
    seed: Seed
    status: str
    error: str | None
    techniques: dict[str, Flag]
    loss_arguments: list[str]
    metrics: list[dict[str, Any]]
    """What read/run.py registers."""
    own_techniques: dict[str, dict[str, Any]]
    config_hash: str
    code_hash: str | None
    git_commit: str | None
    base: str
    base_weights: str | None
    base_origin: str | None
    origin: Origin
    inputs: dict[str, str]
    problems: Problems
    prompt_date: Day
    host: str | None
    pid: Whole | None
    started_at: Moment
    resumed_at: list[Moment]
    resumed_with: list[dict[str, Any]]
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    faults: list[str]
    not_finite: list[str]


@with_config(OPEN)
class Algorithm(TypedDict, total=False):
    techniques: dict[str, Flag] | None


@with_config(OPEN)
class Budget(TypedDict, total=False):
    steps: Step | None


@with_config(OPEN)
class Evaluation(TypedDict, total=False):
    final_samples: Whole | None
    at_tokens: list[Whole] | None


@with_config(OPEN)
class Policy(TypedDict, total=False):
    path: str | None


@with_config(OPEN)
class Regime(TypedDict):
    name: str


@with_config(OPEN)
class Task(TypedDict, total=False):
    base_seed: Seed
    label: str | None


@with_config(OPEN)
class Config(TypedDict, total=False):
    """config.yaml, as far as it is read where no trainer checks it."""

    algorithm: Algorithm | None
    budget: Budget | None
    evaluation: Evaluation | None
    policy: Policy | None
    regime: Regime | None
    task: Task | None


def check_config(tree: dict[str, Any], place: object) -> None:
    """Raises DamagedError in one line where a value is of another type than its key's."""
    if check := configs().check:
        check(tree, place)
    else:
        checked(tree, Config, place, remedy=f"; {RESTORE}")


def checked_record(tree: object, place: object) -> dict[str, Any]:
    """A run's record. Raises DamagedError in one line."""
    return {**checked(tree, Record, place, remedy=f"; {RESTORE}")}


def read_record(run: Path) -> dict[str, Any]:
    """run.json; {} where there is none. Raises DamagedError if it cannot be read, or is that of another run."""
    file = run / RECORD
    if not file.is_file():
        return {}
    record = json_tree(read_bytes(file), file, remedy=f"; {RESTORE}")
    if isinstance(record, dict) and "crc32" in record and not unsealed(record):
        raise DamagedError(f"{file} does not agree with its checksum; {RESTORE}")
    record = checked_record(record, file)
    known = (read_manifest(run) or {}).get("config_hash")
    # A record that was copied from another run agrees with its own checksum; the manifest knows better.
    if known and record and record.get("config_hash") not in known.split():
        raise DamagedError(f"{file} is the record of another config than {MANIFEST} names; {RESTORE}")
    return record


def write_record(run: Path, record: Mapping[str, Any]) -> None:
    write_text(run / RECORD, json.dumps(json.loads(sealed(record)), indent=2) + "\n")


def read_config(run: Path) -> dict[str, Any]:
    """config.yaml as it was written. Raises DamagedError if there is none, or it is not as it was written."""
    file = run / CONFIG
    # Before the checksum, which reads all that is there.
    text = read_text(file) if file.is_file() else None
    check_file(file)
    if text is None:
        raise DamagedError(f"{run}: no {CONFIG}; a run is a folder such as runs/<study>/<arm>/seed_<n>")
    tree = yaml_tree(text, file, remedy=f"; {RESTORE}")
    if not isinstance(tree, dict):
        raise DamagedError(f"{file} is empty or no config; {RESTORE}")
    if (stranger := next(_no_names(tree), None)) is not None:
        raise DamagedError(f"{file}: the key {stranger} is not a name; {RESTORE}")
    return tree


def _no_names(tree: Any) -> Iterator[str]:
    """Keys that are numbers, switches, dates or nothing: no key of a config is."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if not isinstance(key, str):
            yield str(key)[:40]
        yield from _no_names(value)


def config_text(tree: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(tree, sort_keys=False))
