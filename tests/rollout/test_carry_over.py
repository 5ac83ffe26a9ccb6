"""What groups that are carried over count for, and in which step."""

import pickle
from dataclasses import replace

import pytest
from scripted_engine import ScriptedResponse
from test_collect import END, RIGHT, RULES, WRONG, answers, collector

from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError
from dapo_lit.engines.protocol import PartialSample, Sample, SampleKey
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.collect import Collector, ProblemOrder
from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules, KeepRate
from dapo_lit.rollout.records import CollectedStep, Completion, Group, OpenGroup

MODES = ["none", "finished", "all"]


def uneven(key: SampleKey) -> ScriptedResponse:
    """Every fourth problem is all wrong; a problem takes 1 to 4 tokens, and twice the time now and then."""
    number = int(key.problem_id[1:])
    right = number % 4 > 0 and key.sample_index == 0
    length = 1 + (number + key.step) % 4
    ids = (*[END] * (length - 1), RIGHT if right else WRONG)
    return ScriptedResponse(ids, (-0.5,) * length, ends_at=length * (1 + (number * key.step) % 3))


def five_steps(carry_over: str, max_staleness: int = 2) -> tuple[Collector, list[CollectedStep], list[int]]:
    """A collector, its steps, and the groups that ended in each of them."""
    rules = replace(RULES, carry_over=carry_over, max_staleness=max_staleness)
    made = collector(uneven, rules, problems=30)
    made.keep_rate = KeepRate(kept=20.0, generated=60.0)  # more are under way than it takes
    steps, ended, left = [], [], {}
    for step in range(1, 6):
        made.setup.engine.sync_weights([], version=step)
        before = len(made.setup.engine.yielded)
        steps.append(made.collect(step, policy_version=step))
        for key in made.setup.engine.yielded[before:]:
            group = (key.step, key.problem_id, key.attempt)
            left[group] = left.get(group, RULES.samples_per_prompt) - 1
        ended.append(sum(count == 0 and int(name[1][1:]) % 4 > 0 for name, count in left.items()))
        left = {group: count for group, count in left.items() if count}
    return made, steps, ended


@pytest.mark.parametrize("carry_over", MODES)
def test_a_group_is_kept_in_the_step_in_which_it_ends_and_in_no_other(carry_over):
    _, steps, ended = five_steps(carry_over)
    assert [step.metrics["sampling/groups_kept"] for step in steps] == ended
    carried_in = sum(step.metrics["sampling/groups_carried_in"] for step in steps)
    assert (carried_in > 0) == (carry_over != "none")


@pytest.mark.parametrize("max_staleness", [0, 2])
@pytest.mark.parametrize("carry_over", MODES)
def test_every_token_is_trained_on_or_wasted_or_waits_for_the_next_step(carry_over, max_staleness):
    made, steps, _ = five_steps(carry_over, max_staleness)
    trained = sum(c.num_tokens for step in steps for group in step.accepted for c in group.completions)
    wasted = sum(step.metrics["sampling/tokens_wasted_frac"] * step.tokens_generated for step in steps)
    waiting = sum(group.num_tokens for group in made.carried)
    assert trained + wasted + waiting == pytest.approx(sum(step.tokens_generated for step in steps))
    expired = sum(step.metrics["sampling/groups_expired"] for step in steps)
    assert (expired > 0) == (max_staleness == 0 and carry_over != "none")


def test_a_carried_group_fills_the_batch_and_says_nothing_of_how_many_are_mixed():
    step = Admission(CollectionRules(num_prompts=4, max_rounds=25, margin=0.0), KeepRate(kept=1, generated=7))
    assert step.wanted == 16  # (1 + 1) / (7 + 1) = 1/4 are kept
    step.resolve(step.submit(carried=True), mixed=True)
    assert step.wanted == 12
    assert step.counts == (0, 0)
    for mixed in (True, False):
        step.resolve(step.submit(), mixed)
    assert step.wanted == 7  # 3/10 are kept now, and 2 are missing
    assert step.counts == (1, 2)


def test_carried_groups_do_not_use_up_the_rounds_of_a_step():
    """Two rounds of two prompts are four groups, whatever an earlier step left."""
    step = Admission(CollectionRules(num_prompts=2, max_rounds=2, margin=0.0), KeepRate())
    for _ in range(3):
        step.resolve(step.submit(carried=True), mixed=False)
    submitted = 0
    while step.wanted:
        submitted += step.wanted
        for place in [step.submit() for _ in range(step.wanted)]:
            step.resolve(place, mixed=False)
    assert submitted == 4
    assert step.exhausted


def test_a_checkpoint_names_the_problems_of_carried_groups_and_the_data_gives_them_back():
    made, *_ = five_steps("all")
    saved = pickle.loads(pickle.dumps(made.state_dict()))
    problems = [group.group.problem for group in made.carried]
    assert problems
    assert [group.group.problem for group in saved["carried"]] == [Problem(p.id, "", "") for p in problems]
    again = collector(uneven, made.setup.rules, problems=30)
    again.load_state_dict(saved)
    assert [group.group.problem for group in again.carried] == problems
    again.setup.prompts = again.setup.prompts[::-1]
    with pytest.raises(DataError, match=problems[0].id):
        again.load_state_dict(saved)


def test_a_group_is_as_old_as_its_oldest_token():
    """Sampled by weights 0 and 3, and by weights 2: any token older than max_staleness drops the group."""
    group = OpenGroup(Group(1, 0, Problem("p", "", "1"), 0, (7,)), position=0, num_samples=3)
    assert group.oldest_version is None
    old = Sample(group.key(0), (1, 0), (-0.5, -0.5), True, 3, earlier_versions=((0, 1),))
    group.scored[0] = Completion(old, "1", Score(True, 1.0), 1.0)
    group.partial[1] = PartialSample((1,), (-0.5,), ((2, 1),))
    assert group.oldest_version == 0


def test_problems_that_were_returned_and_not_asked_yet_stay_in_line_behind_new_ones():
    made = collector(lambda key: answers(RIGHT if key.sample_index == 0 else WRONG))
    made.returned = [7, 6, 5, 4, 3, 2]
    step = made.collect(1, 0)
    assert [g.problem.id for g in step.generated] == ["p7", "p6", "p5"]
    assert made.returned == [4, 3, 2]
    made.collect(2, 0)
    assert made.returned == []
    # p6 and p5 are asked for ahead of need and dropped unfinished: they come before p4, which still waits.
    made = collector(
        lambda key: answers(RIGHT if key.sample_index == 0 else WRONG, ends_at=0.0 if key.problem_id == "p7" else 9.0),
        replace(RULES, num_prompts=1, margin=9.0),
    )
    made.keep_rate = KeepRate(40, 80)
    made.returned = [7, 6, 5, 4]
    made.collect(1, 0)
    assert 4 in made.returned
    assert sorted(made.returned, reverse=True) == made.returned
    assert len(made.returned) == 3


@pytest.mark.parametrize(("request_groups", "generated"), [(3, 6), (5, 5)])
def test_groups_are_asked_for_in_batches_of_the_size_that_is_asked_for(request_groups, generated):
    """The first problem is unmixed: one group more than the batch of 3 is needed, or the rest of a whole request."""
    first = f"p{ProblemOrder(8, seed=0).next()}"
    step = collector(
        lambda key: answers(RIGHT if key.sample_index == 0 and key.problem_id != first else WRONG),
        replace(RULES, request_groups=request_groups, margin=0.0),
    ).collect(1, 0)
    assert step.metrics["sampling/groups_generated"] == generated
