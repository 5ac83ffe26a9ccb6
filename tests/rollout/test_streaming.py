"""Streaming: what is accepted does not depend on timing, and what was sampled is not lost."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedResponse
from test_collect import END, RIGHT, RULES, WRONG, collector, indices

from ablations.screen import StatusLine
from dapo_lit.engines.protocol import SampleKey, Sampling
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.dynamic_sampling import Admission, CollectionRules, KeepRate
from dapo_lit.seeds import epoch_permutation

PROBLEMS = 12
WORK = {
    "mixed": st.lists(st.booleans(), min_size=PROBLEMS, max_size=PROBLEMS),
    "seconds": st.lists(st.floats(0, 100), min_size=PROBLEMS, max_size=PROBLEMS),
    "concurrency": st.integers(1, 40),
}
"""What `timed` is given, and how many samples are under way."""


def timed(mixed: list[bool], seconds: list[float]) -> Callable[[SampleKey], ScriptedResponse]:
    """Problem i is mixed or all wrong, and takes its own time."""

    def script(key: SampleKey) -> ScriptedResponse:
        number = int(key.problem_id[1:])
        right = mixed[number] and key.sample_index == 0
        ids = (RIGHT if right else WRONG, END)
        return ScriptedResponse(ids, (-0.5, -0.5), ends_at=seconds[(number + key.step) % PROBLEMS] + key.sample_index)

    return script


@settings(max_examples=60, deadline=None)
@given(**WORK, margin=st.floats(0, 3), window=st.floats(1, 5))
def test_neither_timing_nor_the_number_under_way_changes_what_is_accepted(mixed, seconds, concurrency, margin, window):
    made = collector(timed(mixed, seconds), replace(RULES, margin=margin, window=window), problems=PROBLEMS)
    made.setup.engine.concurrency = concurrency
    one_by_one = collector(timed(mixed, [0.0] * PROBLEMS), replace(RULES, margin=0.0, window=1.0), problems=PROBLEMS)
    one_by_one.setup.engine.concurrency = 1
    for step in (1, 2, 3):
        got, want = made.collect(step, step), one_by_one.collect(step, step)
        assert [g.problem.id for g in got.accepted] == [g.problem.id for g in want.accepted]
        assert indices(got.generated) == indices(want.generated)
        assert (made.keep_rate.kept, made.keep_rate.generated) == (
            one_by_one.keep_rate.kept,
            one_by_one.keep_rate.generated,
        )


def test_short_groups_are_not_favoured_where_acceptance_by_completion_would():
    """Half of the groups take 10 tokens and the other half 100; either kind is mixed."""

    def script(key: SampleKey) -> ScriptedResponse:
        length = 100 if int(key.problem_id[1:]) % 2 else 10
        answer = RIGHT if key.sample_index == 0 else WRONG
        return ScriptedResponse((*[END] * (length - 1), answer), (-0.5,) * length, ends_at=float(length))

    made = collector(script, replace(RULES, num_prompts=20, max_rounds=4), problems=200)
    made.setup.sampling = Sampling(max_response_tokens=100)
    made.keep_rate = KeepRate(kept=50, generated=100)  # twice as many are under way as it takes
    step = made.collect(1, 0)
    by_number = [int(g.problem.id[1:]) % 2 for g in step.accepted]
    first_to_end = [int(key.problem_id[1:]) % 2 for key in made.setup.engine.yielded[:40:2]]
    assert sum(first_to_end) == 0
    assert 5 <= sum(by_number) <= 15
    assert step.metrics["sampling/length_ks"] < 0.25
    assert step.metrics["sampling/length_accepted_p90"] == 100


def half_done(carry_over: str, **rules) -> Collector:
    """Groups of 4 tokens a sample; the second and third problem take twice the time of the first in step 1."""

    def script(key: SampleKey) -> ScriptedResponse:
        answer = RIGHT if key.sample_index == 0 else WRONG
        slow = key.problem_id != first
        return ScriptedResponse((answer, END, END, END), (-0.1, -0.2, -0.3, -0.4), ends_at=8.0 if slow else 4.0)

    made = collector(script, replace(RULES, num_prompts=1, max_rounds=9, carry_over=carry_over, margin=0.0, **rules))
    first = made.setup.prompts[epoch_permutation(len(made.setup.prompts), seed=0, epoch=0)[0]].problem.id
    made.keep_rate = KeepRate(kept=1.0, generated=5.0)  # three under way for one wanted
    return made


def test_under_carry_over_all_an_unfinished_response_goes_on_with_the_new_weights():
    made = half_done("all")
    first = made.collect(1, policy_version=0)
    assert [g.partial[0].versions for g in made.carried] == [((0, 2),), ((0, 2),)]
    assert first.tokens_generated == 2 * 4 + 4 * 2
    made.setup.engine.sync_weights([], version=1)
    second = made.collect(2, policy_version=1)
    sample = second.accepted[0].completions[0].sample
    assert (second.accepted[0].step, sample.versions) == (1, ((0, 2), (1, 2)))
    assert sample.rollout_logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert second.metrics["sampling/staleness_mean"] == 0.5
    assert second.tokens_generated == 2 * 2 + 2 * 1  # the other group was one token before its end when it stopped


class _Groups(Verifier):
    """Asks for whole groups, as a function with a parameter `groups` does."""

    wants_groups = True

    def submit_group(self, completions: Sequence[tuple[SampleKey, RewardProblem, str]]) -> None:
        assert len({(key.step, key.problem_id) for key, *_ in completions}) == 1
        assert len(completions) == RULES.samples_per_prompt
        for completion in completions:
            self.submit(*completion)


def test_a_response_that_ended_is_carried_whole_until_its_group_has_ended():
    """An EOS token that was drawn again could come out otherwise: responses that had ended would get longer."""

    def script(key: SampleKey) -> ScriptedResponse:
        answer = RIGHT if key.sample_index == 0 else WRONG
        ends_at = 4.0 if key.sample_index == 0 else 4.5 if key.problem_id == first else 8.0
        # What the weights of a later step would draw instead, were they asked.
        length = 4 if made.setup.engine.version == 0 else 3
        ids, logprobs = (answer, END, END, END)[:length], (-0.1, -0.2, -0.3, -0.4)[:length]
        return ScriptedResponse(ids, logprobs, ends_at=ends_at)

    made = collector(script, replace(RULES, num_prompts=1, max_rounds=9, carry_over="all", margin=0.0))
    made.setup.verifier = _Groups(rule="numeric", extraction="hash")
    first = made.setup.prompts[epoch_permutation(len(made.setup.prompts), seed=0, epoch=0)[0]].problem.id
    made.keep_rate = KeepRate(kept=1.0, generated=5.0)  # three under way for one wanted
    step = made.collect(1, policy_version=0)
    assert step.accepted[0].problem.id == first
    whole = [group.partial[0] for group in made.carried]
    assert [(s.response_ids.tolist(), s.versions) for s in whole] == [([RIGHT, END, END, END], ((0, 4),))] * 2
    assert [group.num_tokens for group in made.carried] == [4 + 2] * 2
    assert step.tokens_generated == sum(c.num_tokens for g in step.accepted for c in g.completions) + 2 * (4 + 2)
    made = restored(made)
    asked = len(made.setup.engine.submitted)
    made.setup.engine.sync_weights([], version=1)
    second = made.collect(2, policy_version=1)
    assert all(request.key.sample_index for request in made.setup.engine.submitted[asked:] if request.key.step == 1)
    one, other = (c.sample for c in second.accepted[0].completions)
    assert (one.response_ids.tolist(), one.versions, one.num_new_tokens) == ([RIGHT, END, END, END], ((0, 4),), 0)
    assert one.rollout_logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert other.versions == ((0, 2), (1, 1))
    assert second.metrics["sampling/staleness_mean"] == pytest.approx(6 / 7)


def restored(made: Collector) -> Collector:
    """With the state of a checkpoint."""
    made.load_state_dict(pickle.loads(pickle.dumps(made.state_dict())))
    return made


def test_a_group_older_than_the_bound_is_dropped_and_its_problem_asked_again():
    made = half_done("all", max_staleness=1)
    made.collect(1, policy_version=0)
    waiting = [g.group.problem.id for g in made.carried]
    made.setup.engine.sync_weights([], version=2)
    step = made.collect(2, policy_version=2)
    assert step.metrics["sampling/groups_expired"] == 2
    assert step.accepted[0].problem.id == waiting[0]
    assert step.accepted[0].step == 2
    assert step.metrics["sampling/staleness_max"] == 0


@pytest.mark.parametrize(("mixed", "tail"), [(10, 2.0), (9, 0.0)])
def test_the_tail_is_the_time_from_nine_tenths_of_a_batch_to_all_of_it(monkeypatch, mixed, tail):
    """Ten groups of two samples that end in turn, by a clock that counts samples; 0 where the batch did not fill."""
    made = collector(
        timed([True] * mixed + [False] * (12 - mixed), [3.0 * i for i in range(12)]),
        replace(RULES, num_prompts=10, max_rounds=1), problems=10,
    )  # fmt: skip
    made.setup.engine.concurrency = 1
    clock = SimpleNamespace(perf_counter=lambda: float(len(made.setup.engine.yielded)))
    monkeypatch.setattr("dapo_lit.rollout.step_collection.time", clock)
    assert made.collect(1, 0).metrics["time/tail_s"] == tail


def test_a_step_that_takes_long_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(StatusLine, "FIRST_S", 0.0)
    monkeypatch.setattr(StatusLine, "EVERY_S", 0.0)
    monkeypatch.setattr(StatusLine, "enabled", True)
    made = collector(timed([True] * PROBLEMS, [0.0] * PROBLEMS), replace(RULES, num_prompts=1), problems=2)
    made.collect(2, 0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("step 2: 1 of 1 groups kept, 1 sampled, about ")


def test_the_window_bounds_how_far_submission_runs_ahead_of_the_oldest_unfinished_group():
    step = Admission(CollectionRules(num_prompts=4, max_rounds=25, window=1.5, margin=0.0), KeepRate(10, 39))
    assert step.wanted == 6  # a quarter is kept: 16 are wanted, 6 allowed
    places = [step.submit() for _ in range(6)]
    for place in places[1:]:
        step.resolve(place, mixed=False)
    assert step.wanted == 0
    step.resolve(places[0], mixed=False)
    assert step.wanted == 6


def test_the_cut_moves_forward_as_earlier_groups_turn_out_mixed():
    step = Admission(CollectionRules(num_prompts=2, max_rounds=5), KeepRate())
    for _ in range(5):
        step.submit()
    step.resolve(4, mixed=True)
    step.resolve(2, mixed=True)
    assert (step.cut, step.full) == (4, False)
    step.resolve(1, mixed=True)
    assert (step.cut, step.full) == (2, False)
    step.resolve(0, mixed=False)
    assert (step.cut, step.full, step.accepted, step.num_examined) == (2, True, [1, 2], 3)
    with pytest.raises(ValueError, match="has already ended"):
        step.resolve(0, mixed=False)
