"""Programs are judged by running them, in the verifier's workers."""

import pytest

from dapo_lit.build.problem_sets import problems as problem_sets
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.tasks import string_programs
from dapo_lit.tasks.string_programs import Programs, problems, reward, run


@pytest.mark.parametrize(
    ("program", "text", "result"),
    [
        ("reverse", "abc", "cba"), ("drop 1; upper", "abc", "BC"), ("take 2; double", "abc", "abab"),
        ("rotate 4", "abc", "bca"), ("sort; `", "cab", None), ("drop", "abc", None), ("reverse 2", "abc", None),
        ("double; double; double; double; double; double; double", "abc", None),
        ("; ".join(["reverse"] * 9), "abc", None),
    ],
)  # fmt: skip
def test_a_program_does_its_steps_or_is_refused(program, text, result):
    if result is None:
        with pytest.raises(string_programs.ProgramError):
            run(program, text)
    else:
        assert run(program, text) == result


def test_any_program_that_is_right_on_the_hidden_pairs_too_is_right():
    pairs = [["ab", "AB"], ["cd", "CD"], ["xyz", "XYZ"], ["q", "Q"]]
    question = RewardProblem("a", "", "reverse; reverse; upper", {"pairs": pairs})
    texts = ["#upper", "reverse:ba#reverse; upper;reverse", "#take 2;upper", "#make it big", "upper"]
    assert reward([question] * len(texts), texts) == [True, True, False, False, False]


def test_the_problems_are_solved_by_their_own_answers_in_a_worker():
    drawn = problems(20, held_out=False, programs=Programs(max_steps=3))
    pairs = [(RewardProblem(p.id, p.problem, p.answer, p.meta), f"#{p.answer}") for p in drawn]
    wrong = [(reference, "#") for reference, _ in pairs]
    with Verifier(
        rule="numeric", extraction="hash", function="dapo_lit.tasks.string_programs.reward", workers=1
    ) as verifier:
        scores = verifier.score([*pairs, *wrong])
    assert [score.value for score in scores] == [1.0] * 20 + [-1.0] * 20


def test_held_out_problems_are_not_trained_on_and_the_config_says_how_many_there_are(compose):
    found = problem_sets(compose("+experiment=string_programs", "task.num_problems=500", small=False))
    train, heldout = {p.problem for p in found.train}, {p.problem for p in found.heldout}
    assert (len(train), len(heldout)) == (500, 200)
    assert not train & heldout


def test_written_steps_are_told_from_an_immediate_answer():
    assert string_programs.has_written_steps("drop 1:bX;reverse:Xb#drop 1;reverse")
    assert not string_programs.has_written_steps("#drop 1;reverse")
