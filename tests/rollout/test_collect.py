"""Dynamic sampling through a whole collection, with an engine whose answers and ending times are scripted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dapo_lit.data.order import ProblemOrder
from dapo_lit.data.problem import Problem
from dapo_lit.rewards.pool import Verifier
from dapo_lit.rollout.collect import CollectionRules, Collector, ExhaustedError, Prompt, StopRequestedError
from dapo_lit.rollout.dynamic_sampling import KeepRate, groups_to_request
from dapo_lit.rollout.engine import Sampling
from dapo_lit.rollout.records import Group, SampleKey
from dapo_lit.rollout.scripted_engine import ScriptedEngine, ScriptedResponse

RULES = CollectionRules(
    num_prompts=3,
    samples_per_prompt=2,
    filter_unmixed=True,
    max_rounds=4,
    on_exhausted="train_smaller",
    carry_finished=False,
)
RIGHT, WRONG, END = 1, 2, 0


def collector(
    script: Callable[[SampleKey], ScriptedResponse], rules: CollectionRules = RULES, problems: int = 8
) -> Collector:
    engine = ScriptedEngine(script)
    engine.sync_weights([], version=0)
    return Collector(
        prompts=[Prompt(Problem(f"p{i}", "1=", "1"), (7,)) for i in range(problems)],
        order=ProblemOrder(problems, seed=0),
        engine=engine,
        verifier=Verifier(rule="numeric", extraction="hash"),
        decode=lambda ids: "#" + "".join(str(i) for i in ids if i != END),
        reward=lambda score, length, truncated: (0.0, score.value),
        rules=rules,
        sampling=Sampling(max_response_tokens=4),
    )


def answers(*tokens: int, ends_at: float = 0.0) -> ScriptedResponse:
    return ScriptedResponse((*tokens, END), (-0.5,) * (len(tokens) + 1), ends_at=ends_at)


def by_problem(verdicts: dict[str, str]) -> Callable[[SampleKey], ScriptedResponse]:
    """'m': mixed, 'r': both right, 'w': both wrong."""

    def script(key: SampleKey) -> ScriptedResponse:
        verdict = verdicts.get(key.problem_id, "m")
        right = verdict == "r" or (verdict == "m" and key.sample_index == 0)
        return answers(RIGHT if right else WRONG)

    return script


def indices(groups: list[Group]) -> list[int]:
    return [g.index for g in groups]


def test_unmixed_groups_are_replaced_until_the_batch_is_full():
    first_four = [f"p{i}" for i in ProblemOrder(8, seed=0).next(4)]
    step = collector(by_problem({first_four[0]: "r", first_four[2]: "w"})).collect(1, policy_version=0)
    assert [g.problem.id for g in step.generated][:4] == first_four
    assert len(step.accepted) == 3
    assert all(g.mixed for g in step.accepted)
    assert indices(step.accepted) == sorted(indices(step.accepted))


def test_every_generated_group_is_accounted_for():
    ids = [f"p{i}" for i in ProblemOrder(8, seed=0).next(8)]
    m = collector(by_problem({ids[0]: "r", ids[1]: "w", ids[2]: "w"})).collect(1, 0).metrics
    # round 1: groups r w w -> 0 kept of 3; the estimate is floored at 1/4, so round 2 asks for min(12, 12 - 3) = 9:
    # 5 mixed ones, then the epoch starts again with all 8 problems in a new order, 4 of which are generated
    assert m["sampling/groups_generated"] == 12
    assert m["sampling/rounds"] == 4.0
    unmixed = m["sampling/groups_generated"] - m["sampling/groups_kept"]
    assert m["sampling/groups_kept"] == 3 + m["sampling/groups_surplus"]
    assert m["sampling/tokens_filtered_frac"] == pytest.approx(unmixed / 12)
    assert m["sampling/tokens_surplus_frac"] == pytest.approx(m["sampling/groups_surplus"] / 12)
    assert m["sampling/tokens_wasted_frac"] == pytest.approx((unmixed + m["sampling/groups_surplus"]) / 12)


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_the_order_in_which_samples_end_does_not_change_what_is_accepted(order):
    def script(key: SampleKey) -> ScriptedResponse:
        number = int(key.problem_id[1:])
        mixed = number % 2 == 0
        ends = number if order == "forward" else -number
        return answers(RIGHT if key.sample_index == 0 and mixed else WRONG, ends_at=ends)

    step = collector(script).collect(1, 0)
    reference = collector(lambda key: replace(script(key), ends_at=0.0)).collect(1, 0)
    assert [g.problem.id for g in step.accepted] == [g.problem.id for g in reference.accepted]


def test_switched_off_every_group_is_accepted_in_one_round():
    step = collector(
        by_problem(dict.fromkeys([f"p{i}" for i in range(8)], "w")), replace(RULES, filter_unmixed=False)
    ).collect(1, 0)
    assert len(step.accepted) == len(step.generated) == 3
    assert step.metrics["sampling/tokens_wasted_frac"] == 0.0


ALL_WRONG = by_problem(dict.fromkeys([f"p{i}" for i in range(8)], "w"))


def test_without_a_mixed_group_the_step_is_empty_after_max_rounds():
    step = collector(ALL_WRONG).collect(1, 0)
    assert step.accepted == []
    assert len(step.generated) == RULES.max_rounds * RULES.num_prompts
    assert step.metrics["sampling/tokens_filtered_frac"] == 1.0


def test_on_exhausted_error_names_the_key_to_change():
    with pytest.raises(ExhaustedError, match="max_rounds"):
        collector(ALL_WRONG, replace(RULES, on_exhausted="error")).collect(1, 0)


def one_mixed_problem(key: SampleKey) -> ScriptedResponse:
    first = f"p{ProblemOrder(20, seed=0).next(1)[0]}"
    return answers(RIGHT if key.problem_id == first and key.sample_index == 0 else WRONG)


def test_train_smaller_trains_on_the_groups_there_are():
    step = collector(one_mixed_problem, problems=20).collect(1, 0)
    assert indices(step.accepted) == [0]


def test_top_up_fills_with_the_first_unmixed_groups():
    step = collector(one_mixed_problem, replace(RULES, on_exhausted="top_up"), problems=20).collect(1, 0)
    assert indices(step.accepted) == [0, 1, 2]
    assert [g.mixed for g in step.accepted] == [True, False, False]


def test_top_up_makes_no_batch_of_unmixed_groups_alone():
    assert collector(ALL_WRONG, replace(RULES, on_exhausted="top_up")).collect(1, 0).accepted == []


def surplus_after_one_step(carry: bool) -> Collector:
    ids = [f"p{i}" for i in ProblemOrder(8, seed=0).next(8)]
    made = collector(by_problem({ids[0]: "w"}), replace(RULES, carry_finished=carry))
    made.keep_rate = KeepRate(kept=1.0, generated=2.0)  # expects half: asks for 6, of which 5 are mixed
    return made


def test_finished_groups_carried_over_come_first_in_the_next_step():
    made = surplus_after_one_step(carry=True)
    first = made.collect(1, policy_version=0)
    assert len(first.generated) == 6
    assert first.metrics["sampling/groups_surplus"] == 0  # carried, not wasted
    carried = list(made.carried)
    assert indices(carried) == [4, 5]
    second = made.collect(2, policy_version=1)
    assert second.accepted[:2] == carried
    assert second.metrics["sampling/groups_carried_in"] == 2
    assert [g.step for g in second.accepted] == [1, 1, 2]


def test_without_carry_over_the_surplus_is_dropped_and_counted():
    made = surplus_after_one_step(carry=False)
    assert made.collect(1, 0).metrics["sampling/groups_surplus"] == 2
    assert made.carried == []


def test_a_problem_that_comes_twice_in_a_step_gets_other_noise():
    made = collector(ALL_WRONG, problems=3)
    made.collect(1, 0)
    keys = [request.key for request in made.engine.submitted]
    assert len(set(keys)) == len(keys) == 24
    assert max(key.attempt for key in keys) == 3


def test_a_stop_request_gives_the_step_up_and_restores_the_position():
    made = collector(ALL_WRONG)
    made.collect(1, 0)
    before = made.state_dict()
    made.stop_requested = lambda: True
    with pytest.raises(StopRequestedError):
        made.collect(2, 0)
    assert made.state_dict() == before


def test_collection_continues_from_its_state_as_if_never_interrupted():
    whole = surplus_after_one_step(carry=True)
    whole.collect(1, 0)
    state = whole.state_dict()
    second = whole.collect(2, 1)
    resumed = surplus_after_one_step(carry=True)
    resumed.load_state_dict(state)
    again = resumed.collect(2, 1)
    assert [(g.step, g.index, g.problem.id) for g in again.accepted] == [
        (g.step, g.index, g.problem.id) for g in second.accepted
    ]
    assert again.metrics.keys() == second.metrics.keys()


def test_the_number_asked_for_follows_the_keep_rate():
    rate = KeepRate()
    assert rate.value == 1.0
    rate.update(kept=3, generated=4)
    assert groups_to_request(6, rate.value, allowance=100) == 8
    assert groups_to_request(6, rate.value, allowance=5) == 5
    rate.end_step()
    assert (rate.kept, rate.generated) == (1.5, 2.0)


def test_a_keep_rate_of_nothing_kept_still_asks_for_a_finite_number():
    rate = KeepRate(kept=0.0, generated=9.0)
    assert rate.value == pytest.approx(0.1)
