"""docs/examples/reasoning_gym_task.py: the full score is right, anything less is wrong, and no answer is executed."""

import pytest

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym")
import reasoning_gym_task


@pytest.fixture(scope="module")
def verifier():
    with Verifier(
        rule="numeric", extraction="answer_line", function="reasoning_gym_task.reward", workers=1, deadline_s=20.0
    ) as verifier:
        yield verifier


def asked(dataset: str, count: int = 2) -> list[RewardProblem]:
    rows = reasoning_gym_task.problems(dataset, count, {}, seed=5)
    return [RewardProblem(str(i), row.pop("problem"), row.pop("answer"), row) for i, row in enumerate(rows)]


@pytest.mark.parametrize("dataset", ["countdown", "spiral_matrix", "simple_integration"])
def test_references_get_the_full_score_in_a_worker_and_junk_and_partial_scores_are_wrong(verifier, dataset):
    references = asked(dataset)
    right = verifier.score([(r, f"So.\nAnswer: {r.answer}") for r in references])
    wrong = verifier.score([(r, text) for r in references for text in ("Answer: qzx", "Answer: 1 + 1", "nothing")])
    assert [score.value for score in right] == [1.0] * len(references)
    assert [(score.correct, score.value, score.error) for score in wrong] == [(False, -1.0, None)] * len(wrong)


@pytest.mark.parametrize("text", ["exec(chr(1))", "x.__class__", "x.real", "lambda: 1", "a if b else c", "'a'", "f[0]"])
def test_only_formulas_are_parsed(text):
    with pytest.raises(ValueError, match="no formula"):
        reasoning_gym_task.read_formula(text, parse=str)
    assert reasoning_gym_task.read_formula("3*x**2 + sin(x)/2.5", parse=str) == "3*x**2 + sin(x)/2.5"
