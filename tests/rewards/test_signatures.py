"""Rewards written for verl, TRL and OpenRLHF are called as they call them; any other is refused with what adapts it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from foreign_rewards import NO_VERDICTS
from small_runs import Run, untimed

from dapo_lit.build.components import RunComponents
from dapo_lit.data.sources import load_problems
from dapo_lit.preflight.training import check_run
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.signatures import asks_for
from dapo_lit.rewards.supervisor import WorkersLostError
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.rank_sampling import RankSampling

QUESTION = RewardProblem("p1", "2 + 3?", "5", meta={"data_source": "mine", "split": "train"})


@pytest.fixture(autouse=True)
def _functions(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def verifier(name: str, **settings) -> Verifier:
    return Verifier(rule="numeric", extraction="number", function=f"foreign_rewards.{name}", workers=1, **settings)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("verl", (1.5, -0.5)),
        ("verl_async", (1.0, -1.0)),
        ("verl_batch", (1.0, -1.0)),
        ("trl_chat", (1.0, -1.0)),
        ("trl_prompts", (1.0, -1.0)),
        ("trl_async", (1.0, -1.0)),
        ("openrlhf", (1.0, -1.0)),
        ("openrlhf_list", (1.0, -1.0)),
        ("own_async", (1.0, -1.0)),
    ],
)
def test_a_function_of_another_trainer_is_called_as_that_one_calls_it(name, values):
    with verifier(name) as made:
        right, wrong = made.score([(QUESTION, "it is 5"), (QUESTION, "it is 6")])
    assert (right.error, wrong.error) == (None, None)
    assert [(score.correct, score.value) for score in (right, wrong)] == [(True, values[0]), (False, values[1])]


@pytest.mark.parametrize(
    ("row", "name", "right"),
    [
        ({"question": "2 + 3?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}, "trl_solution", "5"),
        ({"prompt": "2 + 3?", "solution": "2 + 3 = <<2+3=5>>5\n#### 5"}, "trl_solution", "5"),
        ({"problem": "2 + 3?", "answer": "5", "solution": "count on"}, "trl_own_solution", "count on 5"),
    ],
    ids=["GSM8K", "TRL's columns", "a column of one's own"],
)
def test_a_function_of_trls_gets_the_reference_as_solution_unless_the_data_have_a_column_of_that_name(
    tmp_path, row, name, right
):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (problem,) = load_problems(str(tmp_path / "rows.jsonl"))
    asked = RewardProblem(problem.id, problem.problem, problem.answer, problem.meta)
    with verifier(name) as made:
        scores = made.score([(asked, right), (asked, "6")])
    assert [(score.correct, score.error) for score in scores] == [(True, None), (False, None)]


def test_a_result_of_verls_without_a_score_is_an_error_that_says_so():
    with verifier("verl_other") as made:
        (score,) = made.score([(QUESTION, "5")])
    assert "verl's has `score`" in (score.error or "")


def test_a_result_without_a_score_leaves_the_others_of_its_batch_their_verdicts():
    with verifier("verl_sometimes") as made:
        scores = made.score([(QUESTION, "5"), (QUESTION, "6"), (QUESTION, "it is 5")])
    assert [score.missing for score in scores] == [False, True, False]


@pytest.mark.parametrize("name", ["verl_acc", "openrlhf_scores"])
def test_what_is_neither_true_nor_false_is_no_verdict_and_no_other_completion_suffers(name):
    with verifier(name) as made:
        right, *others = made.score([(QUESTION, text) for text in ("5", *NO_VERDICTS)])
    assert (right.correct, right.value, right.error) == (True, 0.5, None)
    assert [score.missing for score in others] == [True] * len(NO_VERDICTS)


def test_a_function_that_asks_for_groups_is_refused_where_its_definition_is_not(tmp_path, monkeypatch):
    (tmp_path / "reexported.py").write_text("from foreign_rewards import longest_of_group\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Verifier(rule="numeric", extraction="number", function="reexported.longest_of_group", workers=1)
    with made, pytest.raises(WorkersLostError, match=r"reexported .*`def`"):
        made.score([(QUESTION, "5")])


def test_a_signature_that_is_not_known_is_refused_with_the_lines_that_adapt_it():
    with verifier("areal") as made, pytest.raises(WorkersLostError, match="known signatures") as refused:
        made.score([(QUESTION, "5")])
    message = str(refused.value)
    assert "foreign_rewards.areal(prompt, completions, prompt_ids, completion_ids, answer)" in message
    assert "`from foreign_rewards import areal`, `def reward(problems, completions):`" in message
    assert "\n" not in message


def test_a_function_that_asks_for_groups_is_known_by_its_definition_and_gets_one_group_at_a_time():
    assert asks_for("foreign_rewards.longest_of_group", "groups")
    assert not asks_for("foreign_rewards.longest", "groups")
    other = RewardProblem("p2", "1 + 1?", "2")
    with verifier("longest_of_group") as made:
        scores = made.score([(QUESTION, "12"), (other, "1"), (QUESTION, "1234"), (QUESTION, "1"), (other, "12345")])
    assert [score.correct for score in scores] == [False, False, True, False, True]


def test_a_group_whose_function_fails_has_no_verdict_as_a_whole():
    with verifier("fails_on_plus") as made:
        scores = made.score([(QUESTION, "1+1"), (QUESTION, "2"), (RewardProblem("p2", "?", "2"), "2")])
    assert [score.missing for score in scores] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "warned"),
    [("longest", True), ("shortest_of_prompt", True), ("longest_of_group", False), ("own_async", False)],
)
def test_scores_that_depend_on_their_batch_are_warned_of_unless_whole_groups_are_asked_for(
    compose, capsys, name, warned
):
    parts = RunComponents(compose(f"reward.function=foreign_rewards.{name}"))
    with parts.verifier:
        check_run(parts)
    printed = capsys.readouterr().out
    assert ("completions get another score" in printed) == warned


@pytest.mark.parametrize("carry_over", ["none", "all"])
def test_a_run_gives_whole_groups_and_repeats_itself_whatever_the_timing(compose, tmp_path, monkeypatch, carry_over):
    """The function fails where a group is not whole: its completions would have no verdict."""
    found, reopened, reopen = [], [], RankSampling._reopen

    def noted(self):
        before = len(self._withdrawn)
        reopen(self)
        reopened.append(len(self._withdrawn) - before)

    monkeypatch.setattr(RankSampling, "_reopen", noted)
    for name in ("one", "other"):
        config = compose(
            "reward.function=foreign_rewards.longest_of_some_groups", "algorithm.samples_per_prompt=4",
            f"algorithm.dynamic_sampling.carry_over={carry_over}", "reward.max_error_frac=0",
            "rollout.max_batch_size=6", "budget.steps=3", f"runs_dir={tmp_path / name}",
        )  # fmt: skip
        run = Run(config)
        run.fit()
        found.append(untimed(run.folder.path))
    assert found[0] == found[1]
    assert any(reopened)  # samples of a group that was not complete at the end of a step
    assert all(row["reward/verifier_error_frac"] == 0 for row in found[0][1:])


def test_a_graded_reward_has_the_values_of_its_range_and_the_greatest_is_right():
    with verifier("graded") as made:
        best, middle, beyond = made.score([(QUESTION, text) for text in ("1", "0.25", "1.5")])
    assert [(score.correct, score.value) for score in (best, middle)] == [(True, 1.0), (False, 0.25)]
    assert re.search(r"returned 1\.5, .* 0 to 1$", beyond.error or "")
    with verifier("badly_graded") as made, pytest.raises(WorkersLostError, match="its range is"):
        made.score([(QUESTION, "1")])


def test_tokens_and_the_step_reach_a_function_of_trls_that_names_them():
    asked = [replace(QUESTION, ids=(7,) * step, sample=f"{step}/0/0") for step in (3, 5)]
    with verifier("tokens_and_step") as made:
        assert made.wants_ids
        first, second = made.score([(asked[0], "3 tokens in step 3"), (asked[1], "5 tokens in step 5")])
    assert (first.correct, second.correct) == (True, True)


def test_none_adds_nothing_where_a_function_of_trls_is_one_of_several():
    weights = {"correctness": 1.0, "foreign_rewards.not_applicable": 10.0}
    with Verifier(rule="numeric", extraction="number", weights=weights, workers=1) as made:
        (score,) = made.score([(QUESTION, "5")])
    assert (score.value, score.error) == (1.0, None)
