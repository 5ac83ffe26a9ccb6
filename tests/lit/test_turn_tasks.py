"""The tasks of several turns: a base policy that asks, or tries again, and a run of two steps that trains on it."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from small_runs import Run, rows

from dapo_lit.config import Config
from dapo_lit.environments.tools import WRONG, calculator
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.runs.rollout_table import rollouts_file
from dapo_lit.tasks.sums_with_calculator import CHARACTERS

SMALL = (
    "algorithm.num_prompts=4", "algorithm.minibatch_prompts=4", "algorithm.epochs=1", "budget.steps=2",
    "algorithm.dynamic_sampling.max_rounds=3", "algorithm.dynamic_sampling.request_groups=8",
    "evaluation.every=0", "evaluation.samples=1", "task.num_heldout=4", "task.num_problems=32",
    "policy=micro", "policy.architecture.max_position_embeddings=160", "logger.rollouts_every=1", "preflight=false",
    "logger.progress=none",
)  # fmt: skip
STAGES = {
    "calculator": "{immediate: 0.3, called: 0.7, in_steps: 0, asking_on: 0, immediate_wrong: 0.9}",
    "second_try": "{first: FIRST, again: FIRST, repeats: 0.5}".replace(
        "FIRST", "{immediate: 1, running_sums: 0, checked: 0, rambling: 0, immediate_wrong: 0.5, wrong_by: 3}"
    ),
}
"""One short stage in place of the task's: a policy that asks within seconds, however badly."""


def episodes(regime: str, compose: Callable[..., Config], folder: Path) -> tuple[list[dict], pd.DataFrame]:
    stages = f"task.base.stages=[{{updates: 100, batch_size: 16, learning_rate: 3e-3, mixture: {STAGES[regime]}}}]"
    easy = {"calculator": ("task.options.max_numbers=2", "task.options.smallest=2", "task.options.largest=9")}
    settings = (*SMALL, *easy.get(regime, ()), stages, f"runs_dir={folder}")
    run = Run(compose(f"+regime={regime}", *settings, small=False))
    run.fit()
    return rows(run.folder.path), pd.read_parquet(rollouts_file(run.folder.path, 2))


def check(found: list[dict], table: pd.DataFrame, turns: float) -> None:
    assert [row["step"] for row in found] == [0, 1, 2]
    for row in found[1:]:
        assert row["turns/num_mean"] > turns
        assert row["turns/ended_by_environment_frac"] > 0
        assert row["turns/ended_by_failed_frac"] == 0
        assert row["loss/policy"] is not None
    assert (table["ended_by"] == "environment").any()


def test_a_base_policy_asks_its_calculator_and_the_first_steps_train_on_what_it_was_told(compose, tmp_path):
    found, table = episodes("calculator", compose, tmp_path)
    check(found, table, 1.3)
    assert found[1]["task/steps_frac"] > 0.3
    asked = table[table["observation_ids"].map(len) > 0]
    vocabulary = ["", "", *CHARACTERS]  # pad and EOS are no text
    for _, row in asked.iterrows():
        turn = "".join(vocabulary[i] for i in row["response_ids"][: row["observation_places"][0] - 1])
        said = calculator(RewardProblem("", "", ""), [turn])
        first = row["observation_ids"][row["observation_places"] == row["observation_places"][0]]
        assert "".join(vocabulary[i] for i in first) == said


def test_a_base_policy_tries_again_after_wrong(compose, tmp_path):
    found, table = episodes("second_try", compose, tmp_path)
    check(found, table, 1.3)
    again = table[table["observation_ids"].map(len) > 0]
    assert again["response"].str.contains(WRONG).all()
    assert (table.loc[table["correct"] == True, "ended_by"] == "environment").all()  # noqa: E712
    assert (table.loc[table["ended_by"] == "environment", "correct"] == True).all()  # noqa: E712


@pytest.mark.parametrize("task", ["sums_with_calculator", "second_try"])
def test_the_longest_solutions_fit_into_the_limits_of_their_task(compose, task):
    """Steps and answer of the largest problem, EOS tokens included, below where the soft punishment starts."""
    config = compose(f"+regime={'calculator' if 'calc' in task else task}", small=False)
    unpunished = config.task.max_response_tokens - config.algorithm.overlong.cache_tokens
    if task == "second_try":  # two wrong answers, then the running sums of five terms
        longest = ["#45", "#45", "9+9=18;18+9=27;27+9=36;36+9=45;#45"]
    else:
        longest = ["99*99=", "9801*99=", "#970299"]
    assert sum(len(turn) + 1 for turn in longest) <= unpunished
    assert len(longest) <= config.turns.max_turns
    observed = sum(map(len, ("9801", "970299") if task != "second_try" else (WRONG, WRONG)))
    assert observed <= config.turns.max_observation_tokens
