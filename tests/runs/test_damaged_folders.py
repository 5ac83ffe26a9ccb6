"""Run folders that somebody altered and sealed again: every reader of them answers, or refuses in one line."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from odd_values import DRAWS, altered, answer, check_answer

from ablations.errors import DamagedError
from ablations.files.claim import read_claim
from ablations.files.layout import CONFIG, DONE, HEARTBEAT, METRICS, RECORD
from ablations.files.manifest import MANIFEST, read_manifest, sealed, sum_of, write_manifest
from ablations.files.metrics_file import read_metrics
from ablations.files.record import read_config, read_record
from ablations.read.runs import load, read_run
from dapo_lit import advise, report, status

sys.path.append(str(Path(__file__).parents[1] / "study"))
from synthetic_runs import write_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("sound"), steps=6, every=3)
    (run / HEARTBEAT).write_text(json.dumps({"host": "here", "pid": 1, "owner": "x"}))
    return seal(run)


def seal(run: Path) -> Path:
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    files = {name: sum_of(run / name) for name in (CONFIG, "overrides.txt") if (run / name).is_file()}
    record = json.loads((run / RECORD).read_text())
    last = next((row for row in reversed(rows) if isinstance(row, dict) and isinstance(row.get("crc32"), str)), {})
    known = record.get("config_hash") if isinstance(record, dict) else None
    row = {"step": 6, "row": last.get("crc32"), "config_hash": known if isinstance(known, str) else None}
    write_manifest(run, row | {"files": files})
    return run


def copied(sound: Path, folder: Path) -> Path:
    return Path(shutil.copytree(sound, folder / "table1" / "dapo" / "seed_0"))


def in_record(**values: object) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        (run / RECORD).write_text(sealed(json.loads((run / RECORD).read_text()) | values))

    return change


def in_config(**values: object) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        (run / CONFIG).write_text(yaml.safe_dump(yaml.safe_load((run / CONFIG).read_text()) | values))

    return change


def in_last_row(**values: object) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        *rows, last = (run / METRICS).read_text().splitlines()
        (run / METRICS).write_text("\n".join([*rows, sealed(json.loads(last) | values)]) + "\n")

    return change


def in_manifest(**values: object) -> Callable[[Path], object]:
    return lambda run: write_manifest(run, {**(read_manifest(run) or {}), **values})


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record's seed": (in_record(seed="a"), f"{RECORD}: seed is 'a'; it must be an integer"),
    "a seed below 0": (in_record(seed=-1), f"{RECORD}: seed is -1"),
    "an arm that is a path": (in_record(arm="../up"), f"{RECORD}: arm: '../up' names one folder"),
    "a start that is none": (in_record(started_at="noon"), f"{RECORD}: started_at: Invalid isoformat"),
    "switches of text": (in_record(techniques={"clip_higher": "on"}), f"{RECORD}: techniques.clip_higher is 'on'"),
    "inputs of numbers": (in_record(inputs={"problems": 5}), f"{RECORD}: inputs.problems is 5"),
    "an origin without a run": (in_record(origin={"step": 3}), f"{RECORD}: origin.run is missing"),
    "a process of text": (in_record(pid="x"), f"{RECORD}: pid is 'x'"),
    "a record that is a list": (lambda run: (run / RECORD).write_text("[1]"), f"{RECORD}: it is a list of 1"),
    "a record nested deep": (lambda run: (run / RECORD).write_text("[" * 100_000), f"{RECORD} .*nested too deep"),
    "a budget of text": (in_config(budget={"steps": "40"}), f"{CONFIG}: budget.steps is '40'"),
    "a section null": (in_config(algorithm=None), f"{CONFIG}: algorithm is None"),
    "an alias for many": (lambda run: (run / CONFIG).write_text(BOMB), f"{CONFIG} .*more than 100,000 values"),
    "a metric of text": (in_last_row(**{"optim/lr": "x"}), f"{METRICS}, line 7: optim/lr is 'x'; it must be a number"),
    "a metric that is a list": (in_last_row(**{"optim/lr": [1.0]}), "line 7: optim/lr is a list of 1"),
    "metrics that are not finite": (in_last_row(not_finite=5), "line 7, not_finite: it is 5; it must be a list"),
    "a checksum that is none": (in_manifest(files={CONFIG: 5}), f"{MANIFEST}: files.{CONFIG} is 5"),
    "files that are a list": (in_manifest(files=[1]), f"{MANIFEST}: files is a list of 1; it must be a mapping"),
    "a step of text": (in_manifest(step="x"), f"{MANIFEST}: step is 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_run_of_other_types_is_refused_with_file_and_field(sound: Path, tmp_path: Path, name: str) -> None:
    change, reason = DAMAGED[name]
    run = copied(sound, tmp_path)
    change(run)
    if f"{RECORD} .*nested" not in reason and "a list of 1" not in reason and MANIFEST not in reason:
        seal(run)
    with pytest.raises(DamagedError, match=reason):
        read_run(run)
    write_run(tmp_path, seed=1, steps=6, every=3)
    code, _, err = answer(status.main, tmp_path / "table1")
    assert code == 3
    assert f"unreadable: {run}" in err


def test_a_number_beyond_a_float32s_is_not_finite(sound: Path, tmp_path: Path) -> None:
    run = copied(sound, tmp_path)
    in_last_row(**{"optim/grad_norm": 1e300, "optim/lr": 10**30})(run)
    found = read_metrics(seal(run))
    assert found.not_finite == {"optim/grad_norm"}
    assert found.rows[-1]["optim/grad_norm"] is None
    assert found.table["optim/lr"].dtype.kind == "f"


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"pid": "x"}', '{"pid": [1]}', f'{{"pid": {"9" * 5000}}}', "[" * 100_000]
)
def test_a_heartbeat_that_is_none_claims_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / HEARTBEAT).write_text(content)
    assert read_claim(tmp_path) == {}


def drawn(run: Path, name: str, draw: Random) -> str:
    """Alters a value in a file of a run; returns which."""
    file = run / name
    if name == METRICS:
        lines = file.read_text().splitlines()
        at = draw.randrange(len(lines))
        tree, words = altered(json.loads(lines[at]), draw)
        lines[at] = resealed(tree)
        kept = [lines[at]] if draw.random() < 0.15 else lines[at:] if draw.random() < 0.15 else lines
        file.write_text("\n".join(kept) + "\n")
        return f"line {at + 1}: {words}"
    tree, words = altered(yaml.safe_load(file.read_text()), draw)
    file.write_text(yaml.safe_dump(tree) if name == CONFIG else resealed(tree))
    return words


def resealed(tree: Any) -> str:
    try:
        return sealed(tree)
    except (ValueError, TypeError, AttributeError):  # NaN, or no mapping
        return json.dumps(tree)


@pytest.mark.parametrize("name", [RECORD, CONFIG, METRICS, MANIFEST, HEARTBEAT])
def test_drawn_faults_of_run_folders_end_in_a_report_or_in_one_line(sound: Path, tmp_path: Path, name: str) -> None:
    draw = Random(name)
    for number in range(DRAWS):
        folder = tmp_path / str(number)
        run = copied(sound, folder)
        words = f"{name}, draw {number}: {drawn(run, name, draw)}"
        if name != MANIFEST:
            seal(run)
        check_answer(answer(status.main, folder / "table1"), words)
        check_answer(answer(advise.main, run), words)
        if number % 3 == 0:
            check_answer(answer(status.main, folder / "table1", "--pack", folder / "packed"), words)
        if number % 6 == 0:
            check_answer(answer(report.main, folder / "table1", "--output", folder / "page"), words)
        shutil.rmtree(folder)


def test_what_is_read_stays_as_it_was_written(sound: Path) -> None:
    record = json.loads((sound / RECORD).read_text())
    assert read_record(sound) == record
    assert read_config(sound) == yaml.safe_load((sound / CONFIG).read_text())
    assert (sound / DONE).is_file()
    assert load(sound).runs[0].metrics.index.to_list() == [*range(7)]
