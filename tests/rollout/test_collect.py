"""Dynamic sampling through a whole collection, with an engine whose answers and ending times are scripted."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from scripted_engine import ScriptedEngine, ScriptedResponse

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import SampleKey, Sampling
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.collect import Collector, ExhaustedError, ProblemOrder
from dapo_lit.rollout.dynamic_sampling import CollectionRules, KeepRate, groups_in_flight
from dapo_lit.rollout.rank_sampling import CollectionSetup, RankSampling
from dapo_lit.rollout.records import CollectedStep, Completion, Group, Prompt
from dapo_lit.rollout.step_collection import StepCollection
from dapo_lit.seeds import epoch_permutation

RULES = CollectionRules(
    num_prompts=3,
    samples_per_prompt=2,
    dynamic_sampling=True,
    max_rounds=4,
    on_exhausted="train_smaller",
    carry_over="none",
)
RIGHT, WRONG, END = 1, 2, 0


def unshaped(completions: Sequence[Completion]) -> None:
    for completion in completions:
        completion.length_penalty, completion.reward_shaped = 0.0, completion.reward


def by_length(completions: Sequence[Completion]) -> None:
    """A quarter less for each token."""
    for completion in completions:
        completion.length_penalty = -completion.num_tokens / 4
        completion.reward_shaped = completion.reward + completion.length_penalty


def collector(
    script: Callable[[SampleKey], ScriptedResponse], rules: CollectionRules = RULES, problems: int = 8
) -> Collector:
    engine = ScriptedEngine(script)
    engine.sync_weights([], version=0)
    setup = CollectionSetup(
        prompts=[Prompt(Problem(f"p{i}", "1=", "1"), (7,)) for i in range(problems)],
        engine=engine,
        verifier=Verifier(rule="numeric", extraction="hash"),
        decode=lambda ids: "#" + "".join(str(i) for i in ids if i != END),
        shape=unshaped,
        rules=rules,
        sampling=Sampling(max_response_tokens=4),
    )
    return Collector(setup=setup, order=ProblemOrder(problems, seed=0))


def answers(*tokens: int, ends_at: float = 0.0) -> ScriptedResponse:
    return ScriptedResponse((*tokens, END), (-0.5,) * (len(tokens) + 1), ends_at=ends_at)


def by_problem(verdicts: dict[str, str]) -> Callable[[SampleKey], ScriptedResponse]:
    """'m': mixed, 'r': both right, 'w': both wrong."""

    def script(key: SampleKey) -> ScriptedResponse:
        verdict = verdicts.get(key.problem_id, "m")
        right = verdict == "r" or (verdict == "m" and key.sample_index == 0)
        return answers(RIGHT if right else WRONG)

    return script


def two_thirds_mixed(key: SampleKey) -> ScriptedResponse:
    """Lengths differ."""
    number = int(key.problem_id[1:])
    right = number % 3 > 0 and key.sample_index == 0
    length = 1 + (number + key.step) % 3
    return ScriptedResponse((*[END] * (length - 1), RIGHT if right else WRONG), (-0.5,) * length, ends_at=length)


def indices(groups: list[Group]) -> list[int]:
    return [g.index for g in groups]


def test_every_generated_group_is_accounted_for():
    ids = [f"p{i}" for i in epoch_permutation(8, seed=0, epoch=0)]
    script = by_problem({ids[0]: "r", ids[1]: "w", ids[2]: "w"})
    # 3 groups are under way at first; each that ends unmixed is replaced, until the rate of 0 kept of 2 (one is added
    # to both: 1 of 3) is taken as known and 9 are wanted; r w w and 9 more make 12, the allowance.
    step = collector(script).collect(1, 0)
    m = step.metrics
    assert m["sampling/groups_generated"] == 12
    assert m["sampling/rounds"] == 4.0
    assert indices(step.accepted) == [3, 4, 5]
    assert indices(step.generated) == [0, 1, 2, 3, 4, 5]
    # All end at once, in the order of submission: those behind the accepted ones are stopped before they end.
    assert m["sampling/groups_surplus"] == 12 - 6
    assert m["sampling/groups_kept"] == 3
    assert m["sampling/tokens_filtered_frac"] == 0.5
    assert m["sampling/tokens_wasted_frac"] == m["sampling/tokens_filtered_frac"] + m["sampling/tokens_surplus_frac"]


def test_what_sampled_a_step_goes_with_it_and_waits_for_no_garbage_collection():
    """It has the engine's cache: on a GPU those of several steps lay side by side until Python looked for cycles."""
    made = collector(two_thirds_mixed)
    sampled = StepCollection, RankSampling
    gc.collect()
    gc.disable()
    try:
        # What other tests hold is not of this step.
        before = {id(thing) for thing in gc.get_objects() if isinstance(thing, sampled)}
        made.collect(1, 0)
        left = [thing for thing in gc.get_objects() if isinstance(thing, sampled) and id(thing) not in before]
    finally:
        gc.enable()
    assert left == []


def test_acceptance_goes_by_correctness_and_not_by_the_shaped_rewards():
    """Answers differ in length, so all shaped rewards of a group differ; a third of the groups is mixed."""

    def script(key: SampleKey) -> ScriptedResponse:
        verdict = "mrw"[int(key.problem_id[1:]) % 3]
        right = verdict == "r" or (verdict == "m" and key.sample_index == 0)
        return answers(*[END] * key.sample_index, RIGHT if right else WRONG)  # END changes the length and not the text

    def collected(filter_on: str) -> CollectedStep:
        made = collector(script, replace(RULES, filter_on=filter_on), problems=12)
        made.setup.shape = by_length
        return made.collect(1, 0)

    step = collected("correctness")
    assert any(g.num_correct == 0 for g in step.generated)
    assert all(g.completions[0].reward_shaped != g.completions[1].reward_shaped for g in step.generated)
    assert step.accepted
    assert {int(g.problem.id[1:]) % 3 for g in step.accepted} == {0}
    step = collected("shaped_reward")
    assert indices(step.accepted) == [0, 1, 2]  # whatever their verdicts, because their lengths differ
    assert any(not g.mixed for g in step.accepted)


ALL_WRONG = by_problem(dict.fromkeys([f"p{i}" for i in range(8)], "w"))


def one_mixed_problem(key: SampleKey) -> ScriptedResponse:
    first = f"p{ProblemOrder(20, seed=0).next()}"
    return answers(RIGHT if key.problem_id == first and key.sample_index == 0 else WRONG)


@pytest.mark.parametrize(
    ("on_exhausted", "of_one_mixed", "mixed"),
    [("train_smaller", [0], [True]), ("top_up", [0, 1, 2], [True, False, False]), ("error", None, None)],
)
def test_after_max_rounds_the_step_goes_on_as_on_exhausted_says(on_exhausted, of_one_mixed, mixed):
    rules = replace(RULES, on_exhausted=on_exhausted)
    if on_exhausted == "error":
        with pytest.raises(ExhaustedError, match="max_rounds"):
            collector(ALL_WRONG, rules).collect(1, 0)
        return
    step = collector(ALL_WRONG, rules).collect(1, 0)
    assert step.accepted == []  # no batch of unmixed groups alone
    assert len(step.generated) == RULES.max_rounds * RULES.num_prompts
    assert step.metrics["sampling/tokens_filtered_frac"] == 1.0
    step = collector(one_mixed_problem, rules, problems=20).collect(1, 0)
    assert (indices(step.accepted), [g.mixed for g in step.accepted]) == (of_one_mixed, mixed)


@pytest.mark.parametrize("ahead", [0, 1])
def test_replay_fills_the_step_with_mixed_groups_of_earlier_steps_newest_first(ahead):
    """Two of three groups of a step are mixed, so step 3 has two of its own and the later one of step 2.

    A step that is sampled ahead is older by so much, and a replayed group with it.
    """
    order = [f"p{i}" for i in epoch_permutation(20, seed=0, epoch=0)[:12]]
    script = by_problem({order[2]: "w", order[5]: "w", order[8]: "r", order[11]: "w"})
    rules = replace(RULES, max_rounds=1, on_exhausted="replay", max_staleness=1 + ahead)
    made = collector(script, rules, problems=20)
    steps = [made.collect(1, ahead)]
    made.setup.engine.sync_weights([], 1)
    steps.append(made.collect(2, 1 + ahead))
    resumed = collector(script, rules, problems=20)
    resumed.load_state_dict(made.state_dict())
    resumed.setup.engine.sync_weights([], 2)
    steps.append(resumed.collect(3, 2 + ahead))
    assert [[(g.step, g.index) for g in s.accepted] for s in steps] == [
        [(1, 0), (1, 1)],
        [(2, 0), (2, 1), (1, 1)],
        [(3, 0), (3, 1), (2, 1)],
    ]
    assert all(g.mixed for s in steps for g in s.accepted)
    assert steps[2].accepted[2].problem.answer == "1"  # the whole problem, of which a checkpoint has the id
    assert all(g.step == 3 for g in steps[2].generated)  # statistics are those of the step's own groups
    made.setup.rules = replace(rules, max_staleness=0)
    made.collect(3, 2)
    assert indices(made.collect(4, 3).accepted) == [0, 1]  # no other is young enough


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_no_replayed_group_is_older_than_max_staleness_when_it_is_trained_on(ahead):
    """One problem in three is mixed, so that every step replays what it may, each step's samples `ahead` steps old."""
    first = [f"p{i}" for i in epoch_permutation(30, seed=0, epoch=0)[::3]]
    script = by_problem({f"p{i}": "m" if f"p{i}" in first else "w" for i in range(30)})
    rules = replace(RULES, max_rounds=1, on_exhausted="replay", max_staleness=2)
    made, ages = collector(script, rules, problems=30), []
    for step in range(1, 7):
        collected = made.collect(step, step - 1 + ahead)
        made.setup.engine.sync_weights([], step)
        ages.append([collected.policy_version - g.completions[0].sample.versions[0][0] for g in collected.accepted])
    assert ages[-1] == list(range(ahead, 3))


@pytest.mark.parametrize(("margin", "kept"), [(0.0, [1, 2, 3, 4]), (0.2, [2, 3]), (0.4, [])])
def test_a_margin_of_the_pass_rate_narrows_what_is_kept(margin, kept):
    """Groups of five; a rate of exactly the margin, 1 of 5 at 0.2, is not between the bounds."""
    rules = replace(RULES, samples_per_prompt=5, pass_rate_margin=margin, num_prompts=6, max_rounds=1)
    made = collector(lambda key: answers(RIGHT if key.sample_index < int(key.problem_id[1:]) else WRONG), rules, 6)
    assert sorted(g.num_correct for g in made.collect(1, 0).accepted) == kept


def surplus_after_one_step(carry: Literal["none", "finished", "all"]) -> Collector:
    """The first group ends last and is mixed like all others, so those behind it wait for it."""
    ids = [f"p{i}" for i in epoch_permutation(8, seed=0, epoch=0)]

    def script(key: SampleKey) -> ScriptedResponse:
        right = key.sample_index == 0
        return answers(RIGHT if right else WRONG, ends_at=9.0 if key.problem_id == ids[0] and key.step == 1 else 1.0)

    made = collector(script, replace(RULES, carry_over=carry, margin=0.0))
    made.keep_rate = KeepRate(kept=1.0, generated=3.0)  # expects half: 6 groups are under way at once
    return made


def test_finished_groups_carried_over_come_first_in_the_next_step():
    made = surplus_after_one_step("finished")
    first = made.collect(1, policy_version=0)
    assert indices(first.accepted) == [0, 1, 2]
    # Group 3 was accepted while group 0 was under way; when three had ended, groups 4 and 5 were stopped.
    assert [g.group.index for g in made.carried] == [3]
    assert first.metrics["sampling/groups_carried_out"] == 1
    assert first.metrics["sampling/groups_surplus"] == 2
    carried, stopped = made.carried[0].group, list(made.returned)
    made.setup.engine.sync_weights([], version=1)
    second = made.collect(2, policy_version=1)
    assert second.accepted[0] is carried
    assert second.metrics["sampling/groups_carried_in"] == 1
    assert [g.step for g in second.accepted] == [1, 2, 2]
    assert [made.setup.prompts[p].problem.id for p in stopped] == [g.problem.id for g in second.accepted[1:]]
    assert second.metrics["sampling/staleness_max"] == 1
    assert second.metrics["sampling/stale_tokens_frac"] == pytest.approx(1 / 3)


def test_without_carry_over_the_surplus_is_dropped_counted_and_asked_again_first():
    made = surplus_after_one_step("none")
    first = made.collect(1, 0)
    assert first.metrics["sampling/groups_surplus"] == 3
    assert indices(first.surplus) == [3]
    assert made.carried == []
    order = epoch_permutation(8, seed=0, epoch=0)[:6]
    assert made.returned == order[3:]
    assert [g.problem.id for g in made.collect(2, 1).accepted] == [f"p{i}" for i in order[3:]]


def test_a_problem_that_comes_twice_in_a_step_gets_other_noise_and_another_name_for_random_rewards(monkeypatch):
    names, submit = [], Verifier.submit

    def listening(self, ticket, problem, text):
        names.append((problem.id, problem.sample))
        submit(self, ticket, problem, text)

    monkeypatch.setattr(Verifier, "submit", listening)
    made = collector(ALL_WRONG, problems=3)
    for step in (1, 2):
        made.collect(step, 0)
    keys = [request.key for request in made.setup.engine.submitted]
    assert len(set(keys)) == len(set(names)) == len(keys) == 48
    assert max(key.attempt for key in keys) == 3


def test_collection_continues_from_its_state_as_if_never_interrupted():
    whole = surplus_after_one_step("finished")
    whole.collect(1, 0)
    state = whole.state_dict()
    second = whole.collect(2, 1)
    resumed = surplus_after_one_step("finished")
    resumed.load_state_dict(state)
    again = resumed.collect(2, 1)
    for step in (again, second):
        step.accepted = [(g.step, g.index, g.problem.id) for g in step.accepted]
    assert again.accepted == second.accepted
    assert again.metrics.keys() == second.metrics.keys()
    sampled, expected = ({k: v for k, v in s.metrics.items() if "sampling/" in k} for s in (again, second))
    assert sampled == expected  # the keep rate too, which has come to less than the 1 of an unknown one
    assert resumed.keep_rate == whole.keep_rate != KeepRate()


def test_the_number_under_way_follows_the_keep_rate():
    rate = KeepRate()
    assert rate.value == 1.0
    rate.update(kept=2, generated=3)
    assert rate.value == 0.75
    assert groups_in_flight(6, rate.value, margin=0.0) == 8
    # x = u k: x - 1 sqrt(x / 4) >= 6, sqrt(x) = (1/2 + sqrt(1/4 + 24)) / 2 = 2.712, x = 7.356, u = 9.81
    assert groups_in_flight(6, rate.value, margin=1.0) == 10
    assert groups_in_flight(0, rate.value, margin=2.0) == 0  # none is missing: none to be on the safe side either
    rate.end_step()
    assert (rate.kept, rate.generated) == (1.0, 1.5)
