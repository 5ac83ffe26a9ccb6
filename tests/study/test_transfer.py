"""experiments/transfer: the drawn regimes are those of the generator and compose; laws, skill and p-values by hand."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from dapo_lit.cli.command import checked, compose_run
from dapo_lit.config import Config

FOLDER = Path(__file__).parents[2] / "experiments" / "transfer"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"transfer_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


law = script("law")
CONSTANT = {name: np.zeros(24) for name in law.PREDICTORS}


def test_the_committed_regimes_are_what_the_generator_draws():
    files = sorted((FOLDER / "conf" / "drawn").glob("*.yaml"))
    assert [file.read_text(encoding="utf-8") for file in files] == script("draw").drawn()


@pytest.mark.parametrize(("number", "task"), [("00", "chain_sum"), ("01", "string_programs"), ("03", "parity")])
def test_a_drawn_regime_is_a_study_of_six_arms_over_one_seed(number, task):
    conf = str(FOLDER / "conf")
    arguments = ["-m", "--config-dir", conf, f"+drawn={number}", "+study=transfer", "seed=400", "study.pilot=true"]
    [(_, study)] = checked(arguments, Config, None)
    assert study is not None
    assert len(study.cells) == 6
    config = compose_run(study.composed(study.cells[0]), Config)
    assert (config.task.label, config.task.name, config.task.base_seed) == (f"drawn_{number}", task, 400)
    completions = config.algorithm.num_prompts * config.algorithm.samples_per_prompt
    assert (completions, config.algorithm.num_prompts // config.algorithm.minibatch_prompts) == (512, 4)


def test_a_line_is_found_by_its_predictor_and_a_constant_where_nothing_varies():
    seen = pd.DataFrame(CONSTANT)
    seen["accuracy"] = np.linspace(0.1, 0.6, 24)
    seen["truncated answers"] = np.tile([0.1, 0.3], 12)
    found = law.chosen(2 - 30 * seen["truncated answers"].to_numpy(), seen)
    assert found.predictor == "truncated answers"
    assert (found.intercept, found.slope) == pytest.approx((2, -30))
    assert law.chosen(np.full(24, 3.0), seen) == law.Law(None, 3.0, 0.0)


def test_skill_by_hand():
    seen = pd.DataFrame({"accuracy": [0.0, 1.0]})
    line = law.Law("accuracy", 1.0, 2.0)  # says 1 and 3
    # Errors 1 and -1 of the law, 2 and 2 of the average 0: 1 - 2 / 8.
    assert law.skill(line, 0.0, np.array([2.0, 2.0]), seen) == pytest.approx(0.75)


def test_the_p_value_counts_the_orders_that_agree_as_well():
    seen = pd.DataFrame({"accuracy": [0.0, 1.0, 2.0]})
    line, rng = law.Law("accuracy", 0.0, 1.0), np.random.default_rng(0)
    assert law.p_value(line, np.array([1.0, 2.0, 3.0]), seen, rng) == pytest.approx(1 / 6, abs=0.01)
    assert law.p_value(line, np.array([3.0, 2.0, 1.0]), seen, rng) == 1.0
    assert law.p_value(law.Law(None, 1.0, 0.0), np.array([1.0, 2.0, 3.0]), seen, rng) == 1.0


def test_what_following_a_law_gains():
    seen = pd.DataFrame({"accuracy": [0.0, 1.0]})
    line, worth = law.Law("accuracy", -1.0, 2.0), np.array([-4.0, 5.0])  # off, on
    assert law.followed(line, "clip-higher", worth, seen).tolist() == [4.0, 0.0]
    assert law.followed(line, "overlong filtering", worth, seen).tolist() == [0.0, 5.0]
