"""experiments/transfer: the drawn regimes are those of the generator and compose; laws, skill and p-values by hand and
on made-up tables; what is absent is named.
"""

import importlib.util
import json
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
ARMS = ["dapo", "dapo-dynamic_sampling", "dapo-soft_overlong_punishment", "dapo-token_level_loss", "dapo-clip_higher"]
ARMS += ["dapo+overlong_filtering"]


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
    for regimes, each in ((law.FIRST, 8), (law.SECOND, 8), (law.TWICE, 4), (law.TWICE[:6], 2)):
        assert Counter(tasks[n] for n in regimes) == dict.fromkeys(("short_sums", "string_programs", "parity"), each)


@pytest.mark.parametrize(("number", "task"), [("10", "string_programs"), ("21", "chain_sum"), ("08", "parity")])
def test_a_drawn_regime_is_a_study_of_six_arms_over_one_seed(number, task):
    conf = str(FOLDER / "conf")
    arguments = ["-m", "--config-dir", conf, f"+drawn={number}", "+study=transfer", "seed=400", "study.pilot=true"]
    [(_, study)] = checked(arguments, Config, None)
    assert study is not None
    assert [cell.arm for cell in study.cells] == ARMS
    assert {arm for sides in law.SIDES.values() for arm in sides} == {*ARMS}
    config = compose_run(study.composed(study.cells[0]), Config)
    assert (config.task.label, config.task.name, config.task.base_seed) == (f"drawn_{number}", task, 400)
    completions = config.algorithm.num_prompts * config.algorithm.samples_per_prompt
    assert (completions, config.algorithm.num_prompts // config.algorithm.minibatch_prompts) == (512, 4)
    full = draw.STEPS * draw.COMPLETIONS * config.task.max_response_tokens
    assert (config.budget.steps, config.evaluation.at_tokens[-1]) == (draw.STEPS, full // 2)


def made_up(rng: np.random.Generator, slope: float = 0.0, numbers: range = range(24)) -> pd.DataFrame:
    """A table as `measured` gives it. Every technique and every predictor differs between tasks; within tasks, dynamic
    sampling is worth `slope` times the groups that are not mixed, and all else is noise.
    """
    levels = np.random.default_rng(7).normal(0, 8, (3, len(law.TECHNIQUES) + len(law.PREDICTORS)))
    rows = []
    for number in numbers:
        values = dict(zip((*law.TECHNIQUES, *law.PREDICTORS), levels[number % 3] + rng.normal(0, 1, 13), strict=True))
        values["dynamic sampling"] += slope * (values["groups that are not mixed"] - levels[number % 3][6])
        rows.append({"regime": number, "task": law.TASKS[number % 3], "absent": [], **values})
    return pd.DataFrame(rows)


def test_a_law_within_tasks_is_found_and_agrees_with_the_second_half():
    rng = np.random.default_rng(0)
    laws = law.laws_of(made_up(rng, slope=4.0))
    assert laws["dynamic sampling"]["law"]["predictor"] == "groups that are not mixed"
    assert laws["dynamic sampling"]["law"]["slope"] == pytest.approx(4, abs=0.6)
    found = law.scores(laws, made_up(rng, slope=4.0, numbers=range(24, 48)), draws=2000)
    assert found.loc["dynamic sampling", "skill"] > 0.8
    assert found.loc["dynamic sampling", "adjusted"] < 0.01
    assert found.loc["clip-higher", "skill"] < 0.2


def test_differences_between_tasks_are_no_law():
    """Each task has its own worth and its own first steps, by which a line over all regimes would tell them apart."""
    rng, skills, rejected = np.random.default_rng(1), [], 0
    for _ in range(8):
        laws = law.laws_of(made_up(rng))
        found = law.scores(laws, made_up(rng, numbers=range(24, 48)), draws=500)
        skills += found["skill"].tolist()
        rejected += int((found["adjusted"] < 0.05).sum())
    assert max(skills) < 0.35
    assert np.mean(skills) < 0.02
    assert rejected <= 2


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
    table = made_up(np.random.default_rng(5))
    refits = [(law.fitted(table.drop(index=i), "clip-higher", predictor), table.loc[[i]]) for i in table.index]
    errors = [float(fit(one)[0] - one["clip-higher"].iloc[0]) for fit, one in refits]
    assert law.left_out_error(table, "clip-higher", predictor) == pytest.approx(np.square(errors).sum())


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
    assert law.followed(line, "clip-higher", worth, table).tolist() == [4.0, 0.0]
    assert law.followed(line, "overlong filtering", worth, table).tolist() == [0.0, 5.0]


def test_the_share_that_a_second_base_policy_repeats_is_of_the_variance_within_tasks():
    table = made_up(np.random.default_rng(2))
    two = table[table["regime"] < 6].reset_index(drop=True)
    assert law.repeated(table, two, two).tolist() == [1.0] * 6  # the same once more
    shifted = two.assign(**{name: two[name] + 2.0 for name in law.TECHNIQUES})
    spread = law.within(table["clip-higher"], table["task"]).std(ddof=0) * (24 / 21) ** 0.5
    assert law.repeated(table, two, shifted)["clip-higher"] == pytest.approx(1 - 2 / spread**2)


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Writes and packs a regime; `every`: the steps between evaluations, of twelve."""
    monkeypatch.setattr(law, "PACKED", tmp_path / "packed")
    monkeypatch.setattr(law, "UNPACKED", tmp_path / "unpacked")
    monkeypatch.setattr(law, "LAWS", tmp_path / "laws.json")

    def write(number: int, arms: list[str], every: dict[str, int] | None = None, code: str = "c0de") -> Path:
        study = f"transfer_drawn_{number:02}"
        keys = {"task.name": "parity", "evaluation.final_samples": 32, "evaluation.at_tokens": [50_000, 100_000]}
        for arm in read_arms(arms):
            steps = {"steps": 12, "every": (every or {}).get(arm.name, 3)}
            run = write_run(tmp_path / "raw", arm, 400 + number, study=study, keys=keys, code_hash=code, **steps)
            rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            (run / "metrics.jsonl").write_text("".join(metrics_line(row | {"rollout/length_cv": 0.5}) for row in rows))
        raw, folder = tmp_path / "raw" / study, law.PACKED / f"{number:02}"
        register(raw, Plan("transfer", arms=tuple(ARMS), seeds=(400 + number,)), code={"code_hash": "c0de"})
        plan = (raw / FILE).read_text()
        (raw / FILE).write_text(plan.replace(plan.split('"at": "')[1][:10], "2025-12-31"))  # before the runs began
        status([str(raw), "--pack", str(folder), "--bases", str(tmp_path / "bases")])
        return folder

    return write


def test_a_regime_is_read_from_its_packed_cells(packed):
    packed(7, ARMS)
    [row] = law.measured([7]).to_dict("records")
    assert (row["regime"], row["task"], row["absent"]) == (7, "parity", [])
    on, off = law.read(7).of("dapo")[0], law.read(7).of("dapo-dynamic_sampling")[0]
    key = "eval/chain_sum/avg@4"
    assert row["dynamic sampling"] == pytest.approx(100 * (on.series(key)[12] - off.series(key)[12]))
    # 100,000 tokens are passed in step 5 with dynamic sampling and in step 8 without; each third step is evaluated.
    passed = [int(run.series("tokens_generated").searchsorted(100_000)) for run in (on, off)]
    assert passed == [5, 8]
    assert row[law.AT_TOKENS] == pytest.approx(100 * (on.series(key)[6] - off.series(key)[9]))
    assert row["share of the tokens"] == pytest.approx(1e5 / off.series("tokens_generated")[12])
    assert row["tokens, dynamic sampling"] > 1
    assert row["accuracy"] == pytest.approx(off.series("rollout/accuracy")[1])


def test_an_absent_arm_is_named_and_its_regime_left_out_where_it_is_needed(packed):
    packed(7, [arm for arm in ARMS if arm != "dapo-clip_higher"])
    table = law.measured([7])
    assert len(law.kept(table, "token-level loss")) == 1
    assert len(law.kept(table, "clip-higher")) == 0
    assert law.left_out(table) == ["regime 07 is left out for clip-higher: no result of dapo-clip_higher"]


def test_without_the_arm_whose_first_step_is_read_a_regime_is_left_out_for_all(packed):
    packed(7, [arm for arm in ARMS if arm != law.SEEN_IN])
    table = law.measured([7])
    assert [len(law.kept(table, name)) for name in law.TECHNIQUES] == [0] * 6
    assert law.left_out(table)[0].endswith(f"no result of {law.SEEN_IN}")


def test_an_arm_without_its_last_evaluation_is_absent(packed):
    packed(7, ARMS, every={"dapo-clip_higher": 5})  # steps 0, 5 and 10 of 12
    table = law.measured([7])
    assert table["absent"].tolist() == [["dapo-clip_higher"]]
    assert np.isnan(table["clip-higher"].iloc[0])


def test_cells_of_other_code_than_was_registered_and_changed_cells_are_refused(packed):
    with pytest.raises(StudyError, match="Registered with the code c0de"):
        packed(7, ARMS, code="other") and law.read(7)
    folder = packed(8, ARMS)
    metrics = folder / "metrics.parquet"
    metrics.write_bytes(metrics.read_bytes()[:-1])
    with pytest.raises(StudyError):
        law.read(8)


def test_a_law_needs_three_regimes_of_each_task():
    table = made_up(np.random.default_rng(3))
    with pytest.raises(StudyError, match="fewer than 3 regimes"):
        law.chosen(table[(table["task"] != "parity") | (table["regime"] < 6)], "clip-higher")


@pytest.mark.parametrize("place", ["packed/24", "unpacked/transfer_drawn_47"])
def test_laws_are_not_frozen_once_the_second_half_has_started(packed, tmp_path, monkeypatch, place):
    monkeypatch.setattr(law, "measured", lambda _: made_up(np.random.default_rng(4)))
    monkeypatch.setattr(law, "manifests", lambda _: {})
    assert law.freeze()["laws"].keys() == {*law.TECHNIQUES}
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(StudyError, match="before any regime of the second half"):
        law.freeze()


def test_laws_of_other_cells_than_those_that_are_there_are_not_scored(packed, monkeypatch):
    monkeypatch.setattr(law, "FIRST", range(1))
    packed(0, ARMS)
    law.LAWS.write_text('{"manifests": {"00": "1-00000000"}, "laws": {}}', encoding="utf-8")
    with pytest.raises(StudyError, match="regimes 00"):
        law.report()
