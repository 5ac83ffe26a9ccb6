"""The calculations and their demonstrations: exact, apart from what is held out, answered by the calculator itself."""

import re
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.environments.tools import ERROR, calculator
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.tasks.chain_sum import Demonstration
from dapo_lit.tasks.sums_with_calculator import CHARACTERS, Calculations, Mixture, has_asked, is_held_out, problems

NONE = {"immediate": 0.0, "called": 0.0, "in_steps": 0.0, "asking_on": 0.0}


def drawn(num: int, seed: int = 0, calculations: Calculations | None = None, **settings: float) -> list[Demonstration]:
    mixture = Mixture(**NONE | settings, calculations=calculations or Calculations())  # type: ignore[arg-type]
    return list(islice(mixture.stream(seed), num))


def by_python(calculation: str) -> int:
    """Products of Python's ints, then their sum: no parser is asked."""
    total = 0
    for product in calculation.split("+"):
        value = 1
        for number in product.split("*"):
            value *= int(number)
        total += value
    return total


def turns_of(demonstration: Demonstration) -> list[str]:
    return [demonstration.response, *(turn for _, turn in demonstration.then)]


def said_by_the_calculator(demonstration: Demonstration) -> list[str | None]:
    """After each turn, as a run would ask for it."""
    turns = turns_of(demonstration)
    return [calculator(RewardProblem("", "", ""), turns[: number + 1]) for number in range(len(turns))]


def answers(demonstrations: list[Demonstration]) -> list[bool]:
    return [turns_of(d)[-1] == f"#{by_python(d.prompt[:-1])}" for d in demonstrations]


def test_problems_are_exact_differ_and_share_no_numbers_between_the_splits():
    train, held_out = (problems(kind, 300, Calculations()) for kind in ("train", "held_out"))
    for problem in train + held_out:
        assert set(problem.problem) <= set(CHARACTERS)
        assert int(problem.answer) == by_python(problem.problem[:-1])
        numbers = [int(number) for number in re.findall(r"\d+", problem.problem)]
        assert problem.meta == {"num_numbers": len(numbers)}
        assert all(12 <= number <= 99 for number in numbers)
        assert "*" in problem.problem
    assert {p.meta["num_numbers"] for p in train} == {2, 3}
    assert len({p.id for p in train + held_out}) == 600
    splits = [{tuple(sorted(re.findall(r"\d+", p.problem))) for p in split} for split in (train, held_out)]
    assert not splits[0] & splits[1]
    longer = problems("train", 50, Calculations(min_numbers=5, max_numbers=6, smallest=100, largest=999))
    assert [int(p.answer) for p in longer] == [by_python(p.problem[:-1]) for p in longer]
    with pytest.raises(ValueError, match="500 train"):
        problems("train", 500, Calculations(2, 2, 12, 20))


@given(st.lists(st.integers(0, 99), min_size=2, max_size=4), st.randoms())
def test_what_is_held_out_depends_on_the_numbers_only(numbers, rng):
    one = "*".join(map(str, numbers))
    assert is_held_out(one) == is_held_out("+".join(map(str, rng.sample(numbers, len(numbers)))))


def test_the_hash_that_holds_out_never_changes():
    # Base policies, training problems and evaluations of different versions must agree on these.
    found = [f"{a}*{b}" for a in range(12, 30) for b in range(a, 30) if is_held_out(f"{a}*{b}")]
    assert found == [
        *("13*13", "13*15", "13*21", "13*26", "14*21", "15*27", "15*29", "16*17", "16*22", "18*24", "20*26", "20*28"),
        *("22*25", "24*28", "25*26", "25*28", "25*29"),
    ]
    assert not any(is_held_out(d.prompt[:-1]) for d in drawn(1000, immediate=1.0))


def test_one_of_each_kind_is_as_worked_out_by_hand():
    (called,) = drawn(1, called=1.0)
    a, b = called.prompt[:-1].split("*")
    product = str(int(a) * int(b))
    assert called == Demonstration(f"{a}*{b}=", f"{a}*{b}=", True, ((product, f"#{product}"),))
    three = Calculations(3, 3)
    for d in drawn(60, calculations=three, in_steps=1.0):
        one, first, two, second, last = re.fullmatch(r"(\d+)(.)(\d+)(.)(\d+)=", d.prompt).groups()  # type: ignore[union-attr]
        one, two, last = int(one), int(two), int(last)
        if second == "*" and first == "+":  # products first
            asked, inner, then = f"{two}*{last}=", two * last, f"{one}+{two * last}="
        else:
            inner = one * two if first == "*" else one + two
            asked, then = f"{one}{first}{two}=", f"{inner}{second}{last}="
        answer = str(by_python(d.prompt[:-1]))
        assert d == Demonstration(d.prompt, asked, True, ((str(inner), then), (answer, f"#{answer}")))
    (asking,) = drawn(1, asking_on=1.0, most_calls=3)
    answer = str(by_python(asking.prompt[:-1]))
    assert asking == Demonstration(asking.prompt, asking.prompt, True, ((answer, asking.prompt),) * 2)


def test_what_the_calculator_says_in_a_demonstration_is_what_it_would_say():
    found = drawn(
        800, immediate=0.2, called=0.3, in_steps=0.3, asking_on=0.2, immediate_wrong=0.5, call_wrong=0.3,
        answer_wrong=0.2, most_calls=4,
    )  # fmt: skip
    for d in found:
        said = said_by_the_calculator(d)
        assert said[:-1] == [observation for observation, _ in d.then]
        # The last turn answers, and so ends the episode, or asks once more than there is room for.
        assert (said[-1] is None) == turns_of(d)[-1].startswith("#")
        assert set("".join([d.prompt, *turns_of(d), *filter(None, said)])) <= set(CHARACTERS)
    assert any(ERROR in said_by_the_calculator(d) for d in found)


def test_without_faults_every_answer_is_right_and_each_fault_has_its_share():
    shares = {"immediate": 0.3, "called": 0.4, "in_steps": 0.3}
    found = drawn(1000, **shares)
    assert all(answers(found))
    kinds = Counter("=" in d.response for d in found)
    assert kinds[False] / 1000 == pytest.approx(0.3, abs=0.06)  # 4 standard errors
    assert [has_asked("".join(turns_of(d))) for d in found] == ["=" in d.response for d in found]
    for fault, settings in {
        "immediate_wrong": {"immediate": 1.0}, "answer_wrong": {"called": 1.0},
        "call_wrong": {"called": 1.0, "immediate_wrong": 1.0},  # which is the guess after an error
    }.items():  # fmt: skip
        wrong = drawn(1000, **settings, **{fault: 0.25})
        assert answers(wrong).count(False) / 1000 == pytest.approx(0.25, abs=0.06)
        for d in wrong:  # no digit more or less, and no 0 in front
            assert re.fullmatch(r"#(0|[1-9]\d*)", turns_of(d)[-1])


def test_a_spoiled_call_has_another_digit_lacks_a_number_or_is_an_error():
    spoiled = drawn(600, called=1.0, call_wrong=1.0, immediate_wrong=1.0)
    kinds = Counter()
    for d in spoiled:
        asked = re.findall(r"\d+|[+*]+", d.response)
        whole = re.findall(r"\d+|[+*]+", d.prompt)
        if len(asked) < len(whole):
            kinds["number"] += asked == whole[:-2]
        elif d.then[0][0] == ERROR:
            kinds["operator"] += [part[0] for part in asked[1::2]] == whole[1::2] and asked[::2] == whole[::2]
        else:
            kinds["digit"] += sum(a != b for a, b in zip("".join(asked), "".join(whole), strict=True)) == 1
    assert sum(kinds.values()) == 600  # each is one of them
    assert min(kinds.values()) > 150


def test_a_seed_fixes_the_demonstrations_and_mixtures_have_different_recipes():
    assert drawn(30, 1, called=1.0) == drawn(30, 1, called=1.0) != drawn(30, 2, called=1.0)
    one, other = Mixture(**NONE | {"called": 1.0}), Mixture(**NONE | {"called": 1.0}, call_wrong=0.1)
    assert one.recipe() == Mixture(**NONE | {"called": 1.0}).recipe() != other.recipe()
    with pytest.raises(ValueError, match="sum to 1"):
        Mixture(**NONE)
    with pytest.raises(ValueError, match="min_numbers"):
        Calculations(min_numbers=1)
