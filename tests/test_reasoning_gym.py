"""Generators of reasoning-gym: the full score is right, anything less is wrong, and no answer is executed."""

import pytest

from dapo_lit.build.problem_sets import problems as problem_sets
from dapo_lit.config import ConfigError
from dapo_lit.rewards.verifier import Reference, Verifier
from dapo_lit.tasks import reasoning_gym

gym = pytest.importorskip("reasoning_gym", reason="needs the extra `tasks`")
REWARD = "dapo_lit.tasks.reasoning_gym.reward"


@pytest.fixture(scope="module")
def verifier():
    with Verifier(rule="numeric", extraction="answer_line", function=REWARD, workers=1, deadline_s=20.0) as verifier:
        yield verifier


def asked(dataset: str, count: int = 2, **options: object) -> list[Reference]:
    drawn = reasoning_gym.problems(dataset, count, held_out=False, options=options)
    return [Reference(p.id, p.answer, p.problem, p.meta) for p in drawn]


@pytest.mark.parametrize("dataset", ["countdown", "spiral_matrix", "simple_integration"])
def test_the_references_get_the_full_score_in_a_worker_and_junk_is_wrong(verifier, dataset):
    references = asked(dataset)
    right = verifier.score([(r, f"So.\nAnswer: {r.answer}") for r in references])
    junk = verifier.score([(r, text) for r in references for text in ("Answer: qzx", "Answer:", "nothing")])
    assert [score.value for score in right] == [1.0] * len(references)
    assert [(score.correct, score.value, score.error) for score in junk] == [(False, -1.0, None)] * len(junk)


def test_partial_scores_are_no_verdicts(verifier):
    (reference,) = asked("countdown", 1)
    _, entry = reference, reference.meta["entry"]
    generator = gym.create_dataset("countdown", seed=0, size=1)
    assert generator.score_answer("1 + 1", entry) == pytest.approx(0.05, abs=0.05)
    assert generator.score_answer("1 + 1", entry) > 0
    assert not verifier.score([(reference, "Answer: 1 + 1")])[0].correct


def test_a_scorer_that_fails_on_an_answer_makes_it_wrong(verifier):
    (reference,) = asked("prime_factorization", 1)
    score = verifier.score([(reference, "Answer: no × number")])[0]
    assert (score.correct, score.error) == (False, None)


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("spiral_matrix", "[__import__('pathlib').Path('{file}').touch()]"),
        ("polynomial_multiplication", "open('{file}', 'w')"),
    ],
)
def test_no_answer_is_executed(verifier, tmp_path, dataset, answer):
    (reference,) = asked(dataset, 1)
    file = tmp_path / "touched"
    assert not verifier.score([(reference, "Answer: " + answer.format(file=file))])[0].correct
    assert not file.exists()


@pytest.mark.parametrize("text", ["exec(chr(1))", "x.__class__", "x.real", "lambda: 1", "a if b else c", "'a'", "f[0]"])
def test_only_formulas_are_parsed(text):
    with pytest.raises(ValueError, match="no formula"):
        reasoning_gym.read_formula(text, parse=str)
    assert reasoning_gym.read_formula("3*x**2 + sin(x)/2.5", parse=str) == "3*x**2 + sin(x)/2.5"


def test_the_splits_share_no_statement_and_do_not_depend_on_their_sizes(compose):
    def found(*more: str) -> tuple[list[str], list[str]]:
        sets = problem_sets(compose("task=reasoning_gym", "task.path=gcd", *more, small=False))
        return [p.problem for p in sets.train], [p.problem for p in sets.heldout]

    train, heldout = found("task.num_problems=200", "task.num_heldout=50")
    assert (len(set(train)), len(set(heldout))) == (200, 50)
    assert not {*train} & {*heldout}
    fewer, less = found("task.num_problems=20", "task.num_heldout=5")
    assert (fewer, less) == (train[:20], heldout[:5])


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["task.path=countdown", "+task.options.min_numbers=0"], "min_numbers"),
        (["task.path=game_of_life_halting"], "game_of_life_halting"),
    ],
)
def test_what_the_package_does_not_have_is_refused_in_one_line(compose, overrides, named):
    with pytest.raises(ConfigError, match=named) as caught:
        problem_sets(compose("task=reasoning_gym", *overrides, small=False))
    assert "\n" not in str(caught.value)
