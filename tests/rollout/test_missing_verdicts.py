"""Completions without a verdict in a whole collection, with a reward that runs in worker processes."""

from pathlib import Path

import pytest
from test_collect import answers, collector

from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.dynamic_sampling import CollectionRules

RIGHT, WRONG, RAISES = 1, 2, 3
ORDERS = {RIGHT: "right", WRONG: "wrong", RAISES: "raise"}


@pytest.mark.parametrize(
    ("dynamic_sampling", "on_exhausted"), [(True, "train_smaller"), (True, "top_up"), (False, "train_smaller")]
)
def test_a_group_is_compared_without_its_missing_completions_and_left_out_if_fewer_than_two_are_left(
    monkeypatch, dynamic_sampling, on_exhausted
):
    """Of each group of 4: problem p0 loses 1 completion, p1 loses 3, p2 none."""
    lost = {"p0": 1, "p1": 3, "p2": 0}

    def script(key):
        if key.sample_index < lost[key.problem_id]:
            return RAISES
        return RIGHT if key.sample_index == 3 else WRONG

    rules = CollectionRules(
        3, samples_per_prompt=4, dynamic_sampling=dynamic_sampling, max_rounds=1, on_exhausted=on_exhausted
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "rewards"))
    made = collector(lambda key: answers(script(key)), rules, problems=3)
    made.setup.decode = lambda ids: ORDERS[ids[0]]
    function = "reward_functions.obey_or_judge"
    made.setup.verifier = Verifier(rule="numeric", extraction="hash", function=function, deadline_s=20.0)
    with made.setup.verifier:
        step = made.collect(1, 0)
    assert {g.problem.id: len(g.completions) for g in step.accepted} == {"p0": 3, "p2": 4}
    assert {g.problem.id: len(g.missing) for g in step.generated} == lost
    assert step.tokens_generated == 3 * 4 * 2
