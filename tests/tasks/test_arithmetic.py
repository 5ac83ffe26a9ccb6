"""The sums of arithmetic_chat: right, distinct, and apart."""

from dapo_lit.tasks.arithmetic import WORKED_EXAMPLES, arithmetic_problems


def multisets(problems) -> set[tuple[int, ...]]:
    return {tuple(sorted(problem.meta["terms"])) for problem in problems}


def test_the_two_splits_are_apart_and_make_up_all_sums_but_the_worked_ones():
    train, held_out = arithmetic_problems("train"), arithmetic_problems("held_out")
    assert not multisets(train) & multisets(held_out)
    assert not (multisets(train) | multisets(held_out)) & WORKED_EXAMPLES
    assert len(train) + len(held_out) == 90**2 - 4  # two worked sums in two orders each
    assert len({problem.id for problem in train + held_out}) == len(train) + len(held_out)
    assert 0.08 < len(held_out) / 90**2 < 0.12
    for problem in train + held_out:
        a, b = problem.meta["terms"]
        assert (problem.problem, problem.answer) == (f"What is {a} + {b}?", str(a + b))
        assert 10 <= min(a, b) <= max(a, b) <= 99
