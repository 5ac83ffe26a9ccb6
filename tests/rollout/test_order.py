"""The walk over the problems: a permutation an epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_lit.rollout.collect import ProblemOrder
from dapo_lit.seeds import epoch_permutation

sizes = st.integers(1, 30)
seeds = st.integers(-3, 2**40)


@given(sizes, seeds, st.integers(1, 4))
def test_every_epoch_visits_every_problem_once(num_problems, seed, epochs):
    order = ProblemOrder(num_problems, seed)
    for epoch in range(epochs):
        visited = [order.next() for _ in range(num_problems)]
        assert visited == epoch_permutation(num_problems, seed, epoch)
        assert sorted(visited) == list(range(num_problems))


def test_the_order_is_the_same_in_every_version_and_on_every_machine():
    assert epoch_permutation(6, seed=0, epoch=0) == [0, 2, 4, 1, 3, 5]
    assert epoch_permutation(6, seed=0, epoch=1) == [3, 1, 4, 0, 2, 5]
    assert epoch_permutation(6, seed=1, epoch=0) == [4, 2, 5, 0, 1, 3]


@pytest.mark.parametrize(("name", "other"), [("num_problems", ProblemOrder(4, 0)), ("seed", ProblemOrder(5, 1))])
def test_a_state_of_other_data_or_another_seed_is_refused(name, other):
    with pytest.raises(ValueError, match=f"{name} was .* resume=false"):
        ProblemOrder(5, 0).load_state_dict(other.state_dict())
