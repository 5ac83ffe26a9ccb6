"""Packed cells and plans that somebody altered and sealed again: checksums hold, so types must."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
from odd_values import DRAWS, altered, answer, check_answer
from synthetic_runs import write_run

from ablations.commands import report, status
from ablations.designs import Arm
from ablations.files.layout import CELLS
from ablations.files.manifest import sum_of, write_manifest
from ablations.read.packed_cells import METRICS, SAMPLES, pack, read_packed
from ablations.read.registration import FILE, Family, Plan, Registered, as_tree, digest, read_entries, register
from ablations.read.run import StudyError
from ablations.read.runs import load
from ablations.techniques import DAPO

ARMS = (Arm(DAPO), Arm(DAPO - {"clip_higher"}))
Table = pd.DataFrame


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four packed cells and their plan, with two looks."""
    folder = tmp_path_factory.mktemp("sound")
    for arm in ARMS:
        for seed in (0, 1):
            write_run(folder, arm, seed, steps=12, every=4)
    packed = folder / "packed"
    pack(load(folder / "table1").runs, packed, ())
    own, other = (arm.name for arm in ARMS)
    contrast = Registered("clip_higher", "clip_higher", {own: 1.0, other: -1.0}, "rollout/accuracy", "accuracy")
    family = Family("main effects", 0.05, (contrast,), 0.1)
    plan = Plan("table1", "rollout/accuracy", own, (own, other), (0, 1), families=(family,), stopping={"looks": (2, 4)})
    register(packed, plan)
    return packed


def copied(
    sound: Path, folder: Path, file: str = CELLS, change: Callable[[Table], Table] = lambda table: table
) -> Path:
    packed = folder / "packed"
    shutil.copytree(sound, packed)
    change(pd.read_parquet(packed / file)).to_parquet(packed / file)
    write_manifest(packed, {"files": {name: sum_of(packed / name) for name in (CELLS, METRICS, SAMPLES)}})
    return packed


def with_json(column: str, key: str, value: object) -> Callable[[Table], Table]:
    def change(table: Table) -> Table:
        return table.assign(**{column: [json.dumps({**json.loads(text), key: value}) for text in table[column]]})

    return change


ALTERED: dict[str, tuple[str, Callable[[Table], Table], str]] = {
    "steps of text": (METRICS, lambda t: t.assign(step="x"), "column 'step' must be a whole number"),
    "NaN as step": (METRICS, lambda t: t.assign(step=float("nan")), "column 'step' must be a whole number"),
    "steps below 0": (METRICS, lambda t: t.assign(step=-t["step"]), "column 'step' must be a whole number"),
    "a step twice": (METRICS, lambda t: t.assign(step=1), "has two rows of arm dapo, seed 0, step 1"),
    "no step": (METRICS, lambda t: t.drop(columns="step"), "has no column step"),
    "a cell without rows": (METRICS, lambda t: t[t["seed"] == 0], "has no row of dapo/seed_1"),
    "a metric of text": (METRICS, lambda t: t.assign(**{"optim/lr": "high"}), "'optim/lr' must be a number"),
    "a metric of lists": (METRICS, lambda t: t.assign(**{"optim/lr": [[1.0]] * len(t)}), "'optim/lr' must be a number"),
    "a metric of dates": (METRICS, lambda t: t.assign(**{"optim/lr": pd.Timestamp("2026")}), "must be a number"),
    "an infinite metric": (METRICS, lambda t: t.assign(**{"optim/lr": float("inf")}), "'optim/lr' must be finite"),
    "accuracies of 700 %": (METRICS, lambda t: t.assign(**{"rollout/accuracy": 7.0}), "a share between 0 and 1"),
    "verdicts of text": (SAMPLES, lambda t: t.assign(correct="yes"), "'correct' must be true or false"),
    "no verdicts": (SAMPLES, lambda t: t.assign(correct=None), "'correct' must be true or false"),
    "seeds below 0": (CELLS, lambda t: t.assign(seed=-1 - t["seed"]), "'seed' must be a whole number"),
    "half a seed": (CELLS, lambda t: t.assign(seed=t["seed"] + 0.5), "'seed' must be a whole number"),
    "an arm that is a path": (CELLS, lambda t: t.assign(arm="../up"), "names one folder"),
    "a cell twice": (CELLS, lambda t: pd.concat([t, t]), "has two rows of arm dapo, seed 0"),
    "a config that is none": (CELLS, lambda t: t.assign(config="[]"), "dapo/seed_0, config: it is a list of 0"),
    "a record nested deep": (CELLS, lambda t: t.assign(run="[" * 100_000), "dapo/seed_0, run .*nested too deep"),
    "a budget of text": (CELLS, with_json("config", "budget", {"steps": "x"}), "budget.steps is 'x'"),
    "no algorithm": (CELLS, with_json("config", "algorithm", [1]), "algorithm is a list of 1"),
    "a record's faults": (CELLS, with_json("run", "faults", 5), "run: faults is 5; it must be a list"),
    "a record's start": (CELLS, with_json("run", "started_at", "noon"), "run: started_at: Invalid isoformat"),
    "a record's weights": (CELLS, with_json("run", "base_weights", 5), "base_weights is 5; it must be a string"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERED)
def test_packed_cells_of_other_types_are_refused_with_file_and_field(sound: Path, tmp_path: Path, name: str) -> None:
    file, change, reason = ALTERED[name]
    packed = copied(sound, tmp_path, file, change)
    with pytest.raises(StudyError, match=f"{file}.*{reason}"):
        read_packed(packed)
    for command in (status, report):
        code, _, err = answer(command.main, packed)
        assert (code, len(err.strip().splitlines())) == (2, 1), (command, err)


def replanned(packed: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The plan changed, with the digest of what it is now."""
    entries = json.loads((packed / FILE).read_text())
    change(entries[0]["plan"])
    entries[0]["digest"] = digest(entries[0]["plan"])
    (packed / FILE).write_text(json.dumps(entries))
    return packed


def of_contrast(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan["families"][0]["contrasts"][0].update(values)


PLANS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "200,000 seeds": (lambda p: p.update(seeds=list(range(200_000))), "seeds has more than 10,000 entries"),
    "seeds of text": (lambda p: p.update(seeds=["a"]), "seeds.0 is 'a'; it must be an integer"),
    "seeds no list": (lambda p: p.update(seeds=5), "seeds is 5; it must be a list"),
    "alpha of text": (lambda p: p.update(alpha="x"), "alpha is 'x'"),
    "alpha of 5": (lambda p: p["families"][0].update(alpha=5.0), "families.0.alpha is 5; it must be less than 1"),
    "alpha NaN": (lambda p: p["families"][0].update(alpha=float("nan")), "families.0.alpha is nan"),
    "a margin below 0": (lambda p: p["families"][0].update(margin=-1.0), "margin is -1; it must be greater than 0"),
    "no looks": (lambda p: p.update(stopping={"looks": []}), "stopping.looks"),
    "looks of text": (lambda p: p.update(stopping={"looks": ["x"]}), "stopping.looks.0 is 'x'"),
    "looks of 0": (lambda p: p.update(stopping={"looks": [0, 0]}), "stopping.looks.0 is 0; .* greater than 0"),
    "looks that do not ascend": (lambda p: p.update(stopping={"looks": [4, 2]}), "stopping.looks: .* must ascend"),
    "a billion pairs": (lambda p: p.update(stopping={"pairs": 10**9}), "stopping.pairs is 1000000000"),
    "a rule of another kind": (lambda p: p.update(stopping=[1]), "stopping is a list of 1"),
    "weights of text": (of_contrast(weights={"dapo": "x"}), "weights.dapo is 'x'"),
    "no weights": (of_contrast(weights={}), "weights"),
    "weights of no arm": (of_contrast(weights={"nobody": 1.0}), "'nobody', which is not among its arms"),
    "steps backwards": (of_contrast(steps=[9, 1]), "steps: the last step of .* is before the first"),
    "a contrast that is a number": (lambda p: p["families"][0].update(contrasts=[5]), "contrasts.0 is 5"),
    "an arm that is a path": (lambda p: p.update(arms=["../up"]), "arms.0: '../up' names one folder"),
    "a metric that is a list": (lambda p: p.update(metric=["x"]), "metric is a list of 1; it must be a string"),
    "an unknown key": (lambda p: p.update(zzz=5), "zzz is unknown here"),
    "families null": (lambda p: p.update(families=None), "families is None"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_of_other_types_is_refused_with_file_and_field(sound: Path, tmp_path: Path, name: str) -> None:
    change, reason = PLANS[name]
    packed = replanned(copied(sound, tmp_path), change)
    with pytest.raises(StudyError, match=f"{FILE}, entry 0: .*{reason}"):
        read_entries(packed)
    for command in (status, report):
        code, _, err = answer(command.main, packed)
        assert (code, len(err.strip().splitlines())) == (2, 1), (command, err)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is empty"),
        ("{", "not JSON"),
        ("5", "it is 5; it must be a list"),
        ("[]", "no plan in it"),
        ("[null]", "0 is None; it must be a mapping"),
        ("[" * 100_000, "nested too deep"),
        ('[{"at": "yesterday", "plan": {}}]', "0.at: Invalid isoformat string: 'yesterday'"),
        ('[{"at": "2026-01-01", "plan": {}}]', "names no time zone"),
    ],
)
def test_a_file_of_plans_that_is_none_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(StudyError, match=f"{FILE}.*{reason}"):
        read_entries(tmp_path)


def test_a_plan_is_the_same_after_it_was_written_and_read(sound: Path) -> None:
    (entry,) = read_entries(sound)
    assert as_tree(Plan.read(entry["plan"])) == entry["plan"]


@pytest.mark.parametrize("part", ["plan", "run", "config", METRICS, SAMPLES, CELLS])
def test_drawn_faults_of_packed_studies_end_in_a_report_or_in_one_line(sound: Path, tmp_path: Path, part: str) -> None:
    draw = Random(part)
    for number in range(DRAWS):
        folder, words = tmp_path / str(number), ""

        def change(table: Table) -> Table:
            nonlocal words
            if part in ("run", "config"):
                tree, words = altered(json.loads(table[part].iloc[0]), draw)
                return table.assign(**{part: [json.dumps(tree), *table[part].iloc[1:]]})
            column, value = draw.choice(list(table)), draw.choice([None, "x", -1, 1e308, [1.0], float("nan"), True, 7])
            words = f"{column} = {value}"
            return table.drop(columns=column) if draw.random() < 0.2 else table.assign(**{column: [value] * len(table)})

        if part == "plan":
            packed = copied(sound, folder)
            tree, words = altered(json.loads((packed / FILE).read_text()), draw)
            (packed / FILE).write_text(json.dumps(tree))
            if draw.random() < 0.8:
                with suppress(KeyError, IndexError, TypeError, AttributeError):  # no plan is left
                    replanned(packed, lambda plan: None)
        else:
            packed = copied(sound, folder, part if part.endswith("parquet") else CELLS, change)
        what = f"{part}, draw {number}: {words}"
        check_answer(answer(status.main, packed), what)
        if number % 3 == 0:
            check_answer(answer(report.main, packed, "--output", folder / "page"), what)
        shutil.rmtree(folder)
