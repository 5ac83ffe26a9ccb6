"""Demonstrations of a second try: `wrong` follows every wrong answer and no right one."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from itertools import islice, pairwise

import pytest

from dapo_lit.build.base_policy import base_stages
from dapo_lit.build.problem_sets import problems
from dapo_lit.config import Config, ConfigError
from dapo_lit.environments.tools import WRONG
from dapo_lit.tasks import chain_sum
from dapo_lit.tasks.chain_sum import Demonstration, Sums
from dapo_lit.tasks.second_try import CHARACTERS, Mixture

SUMS = Sums(2, 5)


def answering(**shares: float) -> chain_sum.Mixture:
    kinds = {"immediate": 0.0, "running_sums": 0.0, "checked": 0.0, "rambling": 0.0, **shares}
    return chain_sum.Mixture(**kinds, sums=SUMS)  # type: ignore[arg-type]


WRONGLY = answering(immediate=1.0, immediate_wrong=1.0)
RIGHTLY = answering(running_sums=1.0)
SOMEHOW = answering(immediate=0.6, running_sums=0.2, rambling=0.2, immediate_wrong=0.8)


def drawn(num: int, *mixture: object, seed: int = 0, **settings: object) -> list[Demonstration]:
    return list(islice(Mixture(*mixture, **settings).stream(seed), num))  # type: ignore[arg-type]


def turns_of(demonstration: Demonstration) -> list[str]:
    return [demonstration.response, *(turn for _, turn in demonstration.then)]


def is_right(turn: str, demonstration: Demonstration) -> bool:
    return turn.rpartition("#")[2] == str(sum(map(int, demonstration.prompt[:-1].split("+"))))


def test_a_wrong_answer_and_written_steps_after_it_are_as_worked_out_by_hand():
    for d in drawn(50, WRONGLY, RIGHTLY, 0.0):
        first, *rest = map(int, d.prompt[:-1].split("+"))
        text = ""
        for term in rest:
            text += f"{first}+{term}={first + term};"
            first += term
        assert d == Demonstration(d.prompt, d.response, True, ((WRONG, f"{text}#{first}"),))
        assert 1 <= abs(int(d.response[1:]) - first) <= 2


def test_wrong_is_said_to_every_wrong_answer_but_that_of_the_last_try_and_to_no_right_one():
    ends = Counter()
    for d in drawn(600, SOMEHOW, SOMEHOW, 0.3, most_tries=3):
        turns = turns_of(d)
        assert all(said == WRONG for said, _ in d.then)
        assert not any(is_right(turn, d) for turn in turns[:-1])
        assert d.ends == (not turns[-1].endswith(("?", ";")) and "#" in turns[-1])
        how = "cut off" if not d.ends else "right" if is_right(turns[-1], d) else "tries"
        ends[how] += 1
        assert len(turns) <= 3
        assert how != "tries" or len(turns) == 3
        assert set(d.prompt + "".join(turns) + WRONG) <= set(CHARACTERS)
        assert not chain_sum.is_held_out([int(term) for term in d.prompt[:-1].split("+")])
    assert min(ends[how] for how in ("cut off", "right", "tries")) > 60


def test_a_turn_is_repeated_with_its_probability():
    long_ago = answering(immediate=1.0, immediate_wrong=1.0, wrong_by=1000)  # the same by chance: one in 1,000
    pairs = [pair for d in drawn(500, long_ago, long_ago, 0.4) for pair in pairwise(turns_of(d))]
    assert len(pairs) == 3 * 500
    assert sum(a == b for a, b in pairs) / 1500 == pytest.approx(0.4, abs=0.05)  # 4 standard errors
    assert all(len(turns_of(d)) == 4 and len(set(turns_of(d))) == 1 for d in drawn(20, WRONGLY, RIGHTLY, 1.0))


def test_a_seed_fixes_the_demonstrations_and_mixtures_have_different_recipes():
    assert drawn(30, SOMEHOW, SOMEHOW, 0.3) == drawn(30, SOMEHOW, SOMEHOW, 0.3)
    assert drawn(30, SOMEHOW, SOMEHOW, 0.3) != drawn(30, SOMEHOW, SOMEHOW, 0.3, seed=1)
    recipes = [Mixture(SOMEHOW, again, 0.3).recipe() for again in (SOMEHOW, SOMEHOW, WRONGLY)]
    assert recipes[0] == recipes[1] != recipes[2]
    with pytest.raises(ValueError, match="repeats"):
        Mixture(SOMEHOW, SOMEHOW, 1.3)


def test_the_problems_are_those_of_chain_sum_and_both_kinds_of_turns_have_their_sums(compose: Callable[..., Config]):
    config = compose("task=second_try", "task.num_problems=200", small=False)
    assert problems(config).train == chain_sum.train_problems(200, SUMS)
    assert {stage.demonstrations.first.sums for stage in base_stages(config.task)} == {SUMS}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="long_chains"):
        base_stages(compose("task=second_try", "+task.base.long_chains=0.1", small=False).task)
    base = deepcopy(config.task.base)
    assert base is not None
    del base["stages"][1]["mixture"]["again"]
    with pytest.raises(ConfigError, match=r"task\.base of second_try.*again"):
        base_stages(config.task.model_copy(update={"base": base}))
