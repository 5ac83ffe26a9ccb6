"""`rollout/*` and `batch/*` worked by hand on two groups of two."""

from dataclasses import replace

import numpy as np
import pytest

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Observations, Sample, SampleKey
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.metrics import WORDS, batch_metrics, reflection, repetition, rollout_metrics, task_metrics
from dapo_lit.rollout.records import Completion, Group


def completion(ids: tuple[int, ...], correct: bool, finished: bool = True, penalty: float = 0.0) -> Completion:
    sample = Sample(SampleKey(1, "p", 0, 0), ids, (-0.5,) * len(ids), finished, 0)
    reward = 1.0 if correct else -1.0
    text = "7+4=11;#11" if correct else "#3"
    return Completion(sample, text, Score(correct, reward), reward, penalty, reward + penalty)


def group(*completions: Completion) -> Group:
    return Group(1, 0, Problem("p", "", ""), 0, (1,), list(completions))


GROUPS = [
    group(completion((1, 2), True), completion((1, 2, 3, 4, 5, 6), False, finished=False, penalty=-0.5)),
    group(completion((1, 2), True), completion((1, 2), True)),
]


def test_means_over_all_completions_and_shares_of_groups():
    m = rollout_metrics(GROUPS)
    assert m["rollout/accuracy"] == 0.75
    assert m["rollout/reward"] == 0.5
    assert m["rollout/reward_shaped"] == pytest.approx(0.375)
    assert m["reward/length_penalty"] == pytest.approx(-0.125)
    assert m["rollout/length_mean"] == 3.0
    assert m["rollout/length_max"] == 6
    assert m["rollout/length_cv"] == pytest.approx(3**0.5 / 3)  # of 2, 6, 2, 2: variance 3, mean 3
    assert m["rollout/length_correct"] == 2.0
    assert m["rollout/length_wrong"] == 6.0
    assert m["rollout/truncated_frac"] == 0.25
    assert m["rollout/entropy"] == 0.5
    shares = [m[f"rollout/groups_{kind}_frac"] for kind in ("all_correct", "all_wrong", "mixed")]
    assert shares == [0.5, 0.0, 0.5]
    assert m["rollout/unique_frac"] == pytest.approx((1.0 + 0.5) / 2)


def test_completions_without_a_verdict_are_left_out_and_counted():
    late, failed = completion((1,) * 9, False), completion((1,) * 9, False)
    late.score, failed.score = Score(False, -1.0, timed_out=True), Score(False, -1.0, error="x")
    halved = [*GROUPS, group(completion((1, 2), False)), group()]
    halved[2].missing, halved[3].missing = [late], [failed, failed]
    m = rollout_metrics(halved)
    assert m["rollout/accuracy"] == 0.6  # 3 of 5, of 8 in all
    assert (m["rollout/accuracy_low"], m["rollout/accuracy_high"]) == (3 / 8, 6 / 8)
    assert m["reward/verifier_timeout_frac"] == 1 / 8
    assert m["reward/verifier_error_frac"] == 2 / 8
    assert m["rollout/length_max"] == 6
    assert m["rollout/groups_all_correct_frac"] == pytest.approx(1 / 3)  # nothing is known of the last group
    assert [g.comparable for g in halved] == [True, True, False, False]


def test_batch_metrics_are_over_the_groups_trained_on():
    m = batch_metrics(GROUPS[:1])
    assert {key: value for key, value in m.items() if key.startswith("batch/")} == {
        "batch/accuracy": 0.5, "batch/reward": 0.0, "batch/length_mean": 4.0, "batch/truncated_frac": 0.5
    }  # fmt: skip


def test_groups_whose_shaped_rewards_are_all_equal_are_counted():
    key = "sampling/groups_equal_rewards_frac"
    assert batch_metrics(GROUPS)[key] == 0.5  # the second, all right and short
    rounding = group(completion((1,), True), completion((1,), True))
    rounding.completions[0].reward_shaped, rounding.completions[1].reward_shaped = 1.0 - 0.7, 0.3
    assert batch_metrics([rounding])[key] == 1.0
    assert batch_metrics([])[key] is batch_metrics([])["batch/reward"] is None


def test_wrong_groups_with_a_length_penalty_are_counted_with_the_short_answers_that_they_reinforce():
    """Four groups of two, whose advantages are +-0.71 or 0: all wrong, the long answer punished; all wrong, with equal
    rewards; mixed; all right."""
    penalised = group(completion((1,), False), completion((1, 2, 3, 4), False))
    penalised.completions[0].reward_shaped, penalised.completions[1].reward_shaped = 0.0, -1.0
    equal = group(completion((1, 2), False), completion((1, 2), False))
    mixed, right = GROUPS[0], GROUPS[1]
    found = batch_metrics([penalised, equal, mixed, right])
    keys = ("groups_wrong_with_advantages", "advantages_in_wrong_groups", "wrong_reinforced")
    assert [found[f"sampling/{key}_frac"] for key in keys] == [0.25, pytest.approx(0.5), 0.125]
    assert found["sampling/wrong_reinforced_length"] == 1.0
    without = batch_metrics([equal, right])
    assert [without[f"sampling/{key}_frac"] for key in keys] == [0.0, None, 0.0]
    assert without["sampling/wrong_reinforced_length"] is None


def test_a_metric_of_a_task_is_the_share_of_responses_for_which_it_holds():
    shares = {"task/steps_frac": lambda text: "=" in text, "task/any": lambda text: True}
    assert task_metrics(GROUPS, shares) == {"task/steps_frac": 0.75, "task/any": 1.0}


def test_repetition_counts_ngrams_that_came_before():
    assert repetition(np.array([1, 2, 3])) == 0.0
    assert repetition(np.full(7, 5)) == pytest.approx(3 / 4)  # four 4-grams, all alike


# above 65,536 tokens labels do not fit into 16 bits
@pytest.mark.parametrize(("length", "vocabulary"), [(50, 2), (3000, 12), (3000, 152_000), (70_000, 12)])
def test_repetition_is_that_of_a_set_of_ngrams_at_any_length(length, vocabulary):
    ids = np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)
    total = length - 3
    assert repetition(ids) == 1 - len({tuple(ids[i : i + 4].tolist()) for i in range(total)}) / total


def test_reflection_is_the_policys_and_not_what_its_environment_said():
    words = {1: "so it is 7", 2: "That is wrong. Wait", 3: "it is 8", 4: "let me recheck", 5: ""}

    def decode(ids: list[int]) -> str:
        return " ".join(words[token] for token in ids)

    def episode(*ids: int) -> Completion:
        made = completion(ids, True)
        seen = Observations([2], [1])
        sample = replace(made.sample, observations=seen, ended_by="environment")
        return replace(made, sample=sample, text=decode(sample.row_ids.tolist()))

    told, reflecting = episode(1, 3), episode(1, 4)
    assert "wrong" in told.text
    assert reflection([group(told, told)], WORDS, decode) == 0.0
    assert reflection([group(told, reflecting)], WORDS, decode) == 0.5
    assert reflection([group(replace(completion((1,), True), text="wait, recheck"))], WORDS, decode) == 1.0
