"""experiments/transfer: the drawn regimes are those of the generator and compose; laws, skill, p-values and the noise
of a pair by hand and on made-up tables; what is absent is named.
"""

import importlib.util
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import yaml
from synthetic_runs import write_run

from ablations.designs import read_arms
from ablations.files.metrics_file import metrics_line
from ablations.read.registration import FILE, Plan, register
from ablations.read.run import StudyError
from dapo_lit.cli.command import checked, compose_run
from dapo_lit.cli.overrides import choices_as_text, parsed
from dapo_lit.config import Config
from dapo_lit.status import main as status

FOLDER = Path(__file__).parents[2] / "experiments" / "transfer"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"transfer_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


law, draw = script("law"), script("draw")
ARMS = ["dapo", "dapo-dynamic_sampling"]


def test_the_committed_regimes_are_what_the_generator_draws():
    files = sorted((FOLDER / "conf" / "drawn").glob("*.yaml"))
    assert [file.read_text(encoding="utf-8") for file in files] == draw.drawn()


def test_every_regime_is_chosen_by_its_name_and_halves_have_as_many_of_each_task():
    own, tasks = f"hydra.searchpath=['file://{FOLDER / 'conf'}']", []
    for number in range(48):
        # Hydra takes text for a choice, and 10 to 47 would be numbers.
        assert parsed(choices_as_text([own, f"+drawn={number:02}"])[1]).value() == f"{number:02}"
        tree = yaml.safe_load((FOLDER / "conf" / "drawn" / f"{number:02}.yaml").read_text(encoding="utf-8"))
        assert tree["task"]["label"] == f"drawn_{number:02}"
        tasks.append(tree["defaults"][0]["override /task"])
    for regimes in (law.FIRST, law.SECOND):
        assert Counter(tasks[n] for n in regimes) == dict.fromkeys(("short_sums", "string_programs", "parity"), 8)


@pytest.mark.parametrize(("number", "task"), [("10", "string_programs"), ("21", "chain_sum"), ("08", "parity")])
def test_a_drawn_regime_is_a_study_of_two_arms_over_three_base_policies(number, task):
    conf = str(FOLDER / "conf")
    arguments = [
        "-m",
        "--config-dir",
        conf,
        f"+drawn={number}",
        "+study=transfer",
        "seed=400,500,600",
        "study.pilot=true",
    ]
    [(_, study)] = checked(arguments, Config, None)
    assert study is not None
    assert [(cell.arm, cell.seed) for cell in study.cells] == [(arm, seed) for seed in law.SEEDS for arm in ARMS]
    assert [law.ON, law.OFF] == ARMS
    config = compose_run(study.composed(study.cells[0]), Config)
    assert (config.task.label, config.task.name, config.task.base_seed) == (f"drawn_{number}", task, 400)
    completions = config.algorithm.num_prompts * config.algorithm.samples_per_prompt
    assert (completions, config.algorithm.num_prompts // config.algorithm.minibatch_prompts) == (512, 4)
    full = draw.STEPS * draw.COMPLETIONS * config.task.max_response_tokens
    assert (config.budget.steps, config.evaluation.at_tokens[-1]) == (draw.STEPS, full // 2)


def made_up(
    rng: np.random.Generator, slope: float = 0.0, numbers: range = range(24), pair: float = 0.0
) -> pd.DataFrame:
    """Pairs as `measured` gives them. Worths and predictors differ between tasks; within tasks, dynamic sampling is
    worth `slope` times the groups that are not mixed at equal steps, and all else is noise, `pair` of it of each pair.
    """
    names = (*law.WORTHS, *law.PREDICTORS)
    levels = np.random.default_rng(7).normal(0, 8, (3, len(names)))
    rows = []
    for number in numbers:
        values = dict(zip(names, levels[number % 3] + rng.normal(0, 1, len(names)), strict=True))
        values["at equal steps"] += slope * (values["groups that are not mixed"] - levels[number % 3][2])
        for seed in law.SEEDS:
            apart = {name: values[name] + pair * rng.normal() for name in law.WORTHS}
            task = law.TASKS[number % 3]
            rows.append({"regime": number, "task": task, "seed": seed + number, "absent": [], **values, **apart})
    return pd.DataFrame(rows)


def test_a_law_within_tasks_is_found_and_agrees_with_the_second_half():
    rng = np.random.default_rng(0)
    laws = law.laws_of(made_up(rng, slope=4.0, pair=1.0))
    assert laws["at equal steps"]["law"]["predictor"] == "groups that are not mixed"
    assert laws["at equal steps"]["law"]["slope"] == pytest.approx(4, abs=0.6)
    found = law.scores(laws, made_up(rng, slope=4.0, numbers=range(24, 48), pair=1.0), draws=2000)
    assert found["regimes"].tolist() == [24, 24]
    assert found.loc["at equal steps", "skill"] > 0.8
    assert found.loc["at equal steps", "adjusted"] < 0.01
    assert found.loc["at equal tokens", "skill"] < 0.2


def test_differences_between_tasks_are_no_law():
    """Each task has its own worth and its own first steps, by which a line over all regimes would tell them apart."""
    rng, skills, rejected = np.random.default_rng(1), [], 0
    for _ in range(16):
        laws = law.laws_of(made_up(rng))
        found = law.scores(laws, made_up(rng, numbers=range(24, 48)), draws=500)
        skills += found["skill"].tolist()
        rejected += int((found["adjusted"] < 0.05).sum())
    assert max(skills) < 0.35
    assert np.mean(skills) < 0.02
    assert rejected <= 2


def test_the_worth_of_a_regime_is_the_mean_over_its_pairs_and_one_pair_is_none():
    pairs = made_up(np.random.default_rng(2), numbers=range(3))
    pairs["at equal steps"] = [1.0, 2.0, 6.0, 4.0, np.nan, 8.0, np.nan, np.nan, 9.0]
    pairs.loc[:2, "accuracy"] = [0.1, 0.2, 0.6]
    table = law.kept(pairs, "at equal steps")
    assert table[["regime", "at equal steps", "pairs"]].to_numpy().tolist() == [[0, 3.0, 3], [1, 6.0, 2]]
    assert table["accuracy"].iloc[0] == pytest.approx(0.3)
    assert [line.startswith("regime 02 is left out at equal steps: ") for line in law.left_out(pairs)] == [True]


def test_the_noise_of_a_pair_is_the_spread_within_regimes_by_hand():
    pairs = made_up(np.random.default_rng(2), numbers=range(3))
    # Squares around the means 3, 6 and (one pair) 9: 4 + 1 + 9 and 4 + 4, over 2 + 1 degrees of freedom.
    pairs["at equal steps"] = [1.0, 2.0, 6.0, 4.0, np.nan, 8.0, np.nan, np.nan, 9.0]
    assert law.noise(pairs, "at equal steps") == pytest.approx((22 / 3) ** 0.5)


def test_the_true_share_of_the_variance_of_regimes_is_without_the_noise_of_their_pairs():
    # Regimes spread by 1 and pairs by 2, so that the mean of three pairs has 1 of 1 + 4 / 3.
    pairs = made_up(np.random.default_rng(3), numbers=range(3000), pair=2.0)
    assert law.true_share(pairs, "at equal tokens") == pytest.approx(3 / 7, abs=0.05)
    assert law.true_share(made_up(np.random.default_rng(3)), "at equal tokens") == 1.0


def test_a_line_has_an_intercept_for_each_task_and_a_constant_is_its_mean():
    table = pd.DataFrame({"task": ["parity"] * 2 + ["chain_sum"] * 2 + ["string_programs"]})
    table["accuracy"], table["worth"] = [0.0, 1.0, 5.0, 7.0, 1.0], [1.0, 3.0, 0.0, 4.0, 9.0]
    line, means = law.fitted(table, "worth", "accuracy"), law.fitted(table, "worth", None)
    assert line.slope == pytest.approx(2)
    assert line.intercepts == pytest.approx({"parity": 1, "chain_sum": -10, "string_programs": 7})
    assert means.intercepts == pytest.approx({"parity": 2, "chain_sum": 2, "string_programs": 9})
    assert law.left_out_error(table.assign(accuracy=0.5), "worth", "accuracy") == np.inf


@pytest.mark.parametrize("predictor", [None, "accuracy"])
def test_the_error_on_left_out_regimes_is_that_of_fits_without_them(predictor):
    table = law.kept(made_up(np.random.default_rng(5)), "at equal steps")
    refits = [(law.fitted(table.drop(index=i), "at equal steps", predictor), table.loc[[i]]) for i in table.index]
    errors = [float(fit(one)[0] - one["at equal steps"].iloc[0]) for fit, one in refits]
    assert law.left_out_error(table, "at equal steps", predictor) == pytest.approx(np.square(errors).sum())


def test_skill_by_hand():
    table = pd.DataFrame({"task": "parity", "accuracy": [0.0, 1.0]})
    line = law.Law({"parity": 1.0}, "accuracy", 2.0)  # says 1 and 3
    # Errors 1 and -1 of the law, 2 and 2 of the mean 0: 1 - 2 / 8.
    assert law.skill(line, law.Law({"parity": 0.0}), np.array([2.0, 2.0]), table) == pytest.approx(0.75)


def test_the_p_value_counts_the_orders_within_tasks_that_agree_as_well():
    table = pd.DataFrame({"task": ["parity"] * 3 + ["chain_sum"] * 2, "accuracy": [0.0, 1.0, 2.0, 8.0, 9.0]})
    line, rng = law.Law(dict.fromkeys(law.TASKS, 0.0), "accuracy", 1.0), np.random.default_rng(0)
    # 3! orders of one task, 2! of the other; the level of a task does not count.
    assert law.p_value(line, np.array([1.0, 2.0, 3.0, -9.0, -8.0]), table, rng) == pytest.approx(1 / 12, abs=0.01)
    assert law.p_value(line, np.array([3.0, 2.0, 1.0, 9.0, 8.0]), table, rng) == 1.0
    assert law.p_value(law.Law(line.intercepts), np.array([1.0, 2.0, 3.0, 4.0, 5.0]), table, rng) == 1.0


def test_what_following_a_law_gains():
    table = pd.DataFrame({"task": "parity", "accuracy": [0.0, 1.0]})
    line, worth = law.Law({"parity": -1.0}, "accuracy", 2.0), np.array([-4.0, 5.0])  # off, on
    assert law.followed(line, worth, table).tolist() == [4.0, 0.0]


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Writes and packs a regime; `every`: the steps between evaluations, of twelve."""
    monkeypatch.setattr(law, "PACKED", tmp_path / "packed")
    monkeypatch.setattr(law, "UNPACKED", tmp_path / "unpacked")
    monkeypatch.setattr(law, "LAWS", tmp_path / "laws.json")

    def write(
        number: int, absent: tuple[str, int] | None = None, every: dict[str, int] | None = None, code: str = "c0de"
    ):
        study, seeds = f"transfer_drawn_{number:02}", tuple(seed + number for seed in law.SEEDS)
        keys = {"task.name": "parity", "evaluation.final_samples": 32, "evaluation.at_tokens": [50_000, 100_000]}
        for arm, seed in ((arm, seed) for arm in read_arms(ARMS) for seed in seeds if (arm.name, seed) != absent):
            steps = {"steps": 12, "every": (every or {}).get(arm.name, 3)}
            run = write_run(tmp_path / "raw", arm, seed, study=study, keys=keys, code_hash=code, **steps)
            rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            (run / "metrics.jsonl").write_text("".join(metrics_line(row | {"rollout/length_cv": 0.5}) for row in rows))
        raw, folder = tmp_path / "raw" / study, law.PACKED / f"{number:02}"
        register(raw, Plan("transfer", arms=tuple(ARMS), seeds=seeds), code={"code_hash": "c0de"})
        plan = (raw / FILE).read_text()
        (raw / FILE).write_text(plan.replace(plan.split('"at": "')[1][:10], "2025-12-31"))  # before the runs began
        status([str(raw), "--pack", str(folder), "--bases", str(tmp_path / "bases")])
        return folder

    return write


def test_each_pair_is_read_from_its_packed_cells(packed):
    packed(7)
    pairs = law.measured([7])
    assert pairs["seed"].tolist() == [407, 507, 607]
    assert pairs["absent"].tolist() == [[], [], []]
    row = pairs.iloc[1]
    assert (row["regime"], row["task"]) == (7, "parity")
    on, off = (next(run for run in law.read(7).of(arm) if run.seed == 507) for arm in ARMS)
    key = "eval/chain_sum/avg@4"
    assert row["at equal steps"] == pytest.approx(100 * (on.series(key)[12] - off.series(key)[12]))
    # 100,000 tokens are passed in step 5 with dynamic sampling and in step 8 without; each third step is evaluated.
    passed = [int(run.series("tokens_generated").searchsorted(100_000)) for run in (on, off)]
    assert passed == [5, 8]
    assert row["at equal tokens"] == pytest.approx(100 * (on.series(key)[6] - off.series(key)[9]))
    assert row["share of the tokens"] == pytest.approx(1e5 / off.series("tokens_generated")[12])
    assert row["tokens"] > 1
    assert row["accuracy"] == pytest.approx(off.series("rollout/accuracy")[1])


@pytest.mark.parametrize("arm", ARMS)
def test_a_pair_without_a_run_is_named_and_the_regime_has_the_other_two(packed, arm):
    packed(7, absent=(arm, 507))
    pairs = law.measured([7])
    assert law.left_out(pairs) == [f"regime 07: no result of {arm} from base policy 507"]
    assert [law.kept(pairs, name)["pairs"].tolist() for name in law.WORTHS] == [[2], [2]]


def test_a_run_without_its_last_evaluation_is_absent(packed):
    packed(7, every={"dapo": 5})  # steps 0, 5 and 10 of 12
    pairs = law.measured([7])
    assert pairs["absent"].tolist() == [["dapo"]] * 3
    assert law.kept(pairs, "at equal steps").empty


def test_cells_of_other_code_than_was_registered_and_changed_cells_are_refused(packed):
    with pytest.raises(StudyError, match="the code c0de"):
        packed(7, code="other") and law.read(7)
    folder = packed(8)
    metrics = folder / "metrics.parquet"
    metrics.write_bytes(metrics.read_bytes()[:-1])
    with pytest.raises(StudyError):
        law.read(8)


def test_a_law_needs_three_regimes_of_each_task():
    table = law.kept(made_up(np.random.default_rng(3)), "at equal steps")
    with pytest.raises(StudyError, match="fewer than 3 regimes"):
        law.chosen(table[(table["task"] != "parity") | (table["regime"] < 6)], "at equal steps")


@pytest.mark.parametrize("place", ["packed/24", "unpacked/transfer_drawn_47"])
def test_laws_are_not_frozen_once_the_second_half_has_started(packed, tmp_path, monkeypatch, place):
    monkeypatch.setattr(law, "measured", lambda _: made_up(np.random.default_rng(4)))
    monkeypatch.setattr(law, "manifests", lambda _: {})
    assert law.freeze()["laws"].keys() == {*law.WORTHS}
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(StudyError, match="of the second half"):
        law.freeze()


def test_laws_of_other_cells_than_those_that_are_there_are_not_scored(packed, monkeypatch):
    monkeypatch.setattr(law, "FIRST", range(1))
    packed(0)
    law.LAWS.write_text('{"manifests": {"00": "1-00000000"}, "laws": {}}', encoding="utf-8")
    with pytest.raises(StudyError, match="regimes 00"):
        law.report()


def test_the_launcher_runs_three_base_policies_and_no_second_half_without_committed_laws(tmp_path):
    said = tmp_path / "said"
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (tmp_path / "python").chmod(0o755)

    def launched(first: str, last: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", str(FOLDER / "run.sh"), first, last]
        return subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False)

    assert launched("7", "8").returncode == 0
    lines = said.read_text().splitlines()
    for line, number in zip(lines[::2], (7, 8), strict=True):
        seeds = ",".join(str(seed + number) for seed in law.SEEDS)
        assert {f"+drawn={number:02}", "+study=transfer", f"seed={seeds}"} <= set(line.split())
    second = launched("24", "24")
    assert second.returncode == 2
    assert "laws.json" in second.stderr
    assert said.read_text().splitlines() == lines
