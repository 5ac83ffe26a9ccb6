"""The problems of chain_sum and the demonstrations its base policies are made from."""

import re
from collections import Counter
from itertools import combinations_with_replacement, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.tasks.chain_sum import (
    CHARACTERS,
    Demonstration,
    Mixture,
    Sums,
    has_written_steps,
    held_out_problems,
    is_held_out,
    prompt_text,
    train_problems,
)

TERMS = st.lists(st.integers(1, 9), min_size=2, max_size=8)


def terms_of(prompt: str) -> list[int]:
    return [int(term) for term in prompt.removesuffix("=").split("+")]


def drawn(num: int, seed: int = 0, **shares: float) -> list[Demonstration]:
    kinds = {"immediate": 0.0, "running_sums": 0.0, "checked": 0.0, "rambling": 0.0, **shares}
    return list(islice(Mixture(**kinds).stream(seed), num))  # type: ignore[arg-type]


@given(TERMS, st.randoms())
def test_whether_a_sum_is_held_out_does_not_depend_on_the_order_of_its_terms(terms, rng):
    shuffled = rng.sample(terms, len(terms))
    assert is_held_out(terms) == is_held_out(shuffled)


def test_the_hash_that_holds_out_never_changes():
    # Bases, training lists and evaluations of different versions must agree on these.
    of_three = [t for t in combinations_with_replacement(range(1, 10), 3) if is_held_out(t)]
    assert ["".join(map(str, t)) for t in of_three] == [
        *("146", "155", "169", "245", "246", "258", "337", "356", "448", "457", "458", "558", "569")
    ]
    assert sum(map(is_held_out, combinations_with_replacement(range(1, 10), 6))) == 299  # of 3,003
    assert not any(is_held_out([a, b]) for a in range(1, 10) for b in range(1, 10))


def test_training_and_held_out_problems_are_right_differ_and_share_no_multiset_of_terms():
    train, held_out = train_problems(4096), held_out_problems(200)
    multisets = [{tuple(sorted(terms_of(p.problem))) for p in problems} for problems in (train, held_out)]
    assert len(multisets[1]) == 200
    assert not multisets[0] & multisets[1]
    assert len({p.problem for p in train}) == len({p.id for p in train}) == 4096
    for p in train + held_out:
        terms = terms_of(p.problem)
        assert p.answer == str(sum(terms))
        assert p.meta["num_terms"] == len(terms)
        assert set(p.problem) <= set(CHARACTERS)
    counts = Counter(p.meta["num_terms"] for p in train)
    assert set(counts) == set(range(2, 9))
    assert counts[2] == 81  # all there are


def test_demonstrations_without_noise_are_right_and_never_of_a_held_out_sum():
    for d in drawn(1500, immediate=0.4, running_sums=0.4, checked=0.2):
        assert not is_held_out(terms_of(d.prompt))
        assert not d.ends or d.response.rpartition("#")[2] == str(sum(terms_of(d.prompt)))


def test_running_sums_are_written_as_documented():
    for d in drawn(300, running_sums=1.0):
        first, *rest = terms_of(d.prompt)
        text = ""
        for term in rest:
            text += f"{first}+{term}={first + term};"
            first += term
        assert d == Demonstration(d.prompt, f"{text}#{first}", True)


def test_a_checked_demonstration_answers_when_two_passes_agree():
    mixture = Mixture(immediate=0, running_sums=0, checked=1, rambling=0, step_wrong=0.3, sums=Sums(2, 3))
    repeated = 0
    for d in islice(mixture.stream(0), 400):
        if not d.ends:
            continue
        passes, _, answer = d.response.rpartition("#")
        results = [part.rstrip(";").rpartition("=")[2] for part in passes.split("?")]
        # Cut off before a second agreeing pass is the only other way out.
        if len(passes) < 88 - 4:
            assert results[-1] == results[-2] == answer
        assert not any(a == b for a, b in pairwise(results[:-1]))
        repeated += len(results) > 2
    assert repeated > 20


def test_noise_has_the_share_and_the_size_asked_for():
    mixture = Mixture(immediate=1, running_sums=0, checked=0, rambling=0, immediate_wrong=0.3, wrong_by=2)
    off = [int(d.response[1:]) - sum(terms_of(d.prompt)) for d in islice(mixture.stream(0), 4000)]
    assert set(off) == {-2, -1, 0, 1, 2}
    assert sum(o != 0 for o in off) / 4000 == pytest.approx(0.3, abs=0.03)  # 4 standard errors
    mixture = Mixture(immediate=0, running_sums=1, checked=0, rambling=0, step_wrong=0.1)
    steps = [s for d in islice(mixture.stream(0), 1500) for s in re.findall(r"(\d+)\+(\d+)=(\d+)", d.response)]
    assert sum(int(a) + int(b) != int(c) for a, b, c in steps) / len(steps) == pytest.approx(0.1, abs=0.02)


def test_a_seed_fixes_the_demonstrations_and_mixtures_have_different_recipes():
    shares = {"immediate": 0.4, "running_sums": 0.4, "checked": 0.1, "rambling": 0.1}
    assert drawn(50, 1, **shares) == drawn(50, 1, **shares) != drawn(50, 2, **shares)
    one, other = Mixture(**shares), Mixture(**shares, step_wrong=0.01)
    assert one.recipe() == Mixture(**shares).recipe() != other.recipe()


def test_written_steps_are_seen_in_any_response_that_has_one_and_in_no_immediate_answer():
    assert has_written_steps("3+4=7;")
    assert not has_written_steps("#7")
    assert not has_written_steps(prompt_text([3, 4]))
