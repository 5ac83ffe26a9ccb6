"""What k samples of a problem say, worked by hand; nothing sampled twice; intervals that cover what they claim."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scripted_engine import ScriptedEngine, ScriptedResponse
from thread_ranks import ThreadRanks, on_ranks

from ablations.errors import DamagedError
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sampling
from dapo_lit.evaluate import share_interval, summary
from dapo_lit.evaluation.sample_store import read_samples, write_samples
from dapo_lit.evaluation.sampled import (
    SampleKey,
    evaluate,
    evaluated_samples,
    summarise,
)
from dapo_lit.evaluation.voting import VoteCounts, consensus, pass_at_k, vote_counts
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.records import Prompt
from dapo_lit.rollout.step_collection import StopRequestedError

SAMPLING = Sampling(max_response_tokens=64)
TEXTS = {"a": ["#1", "#2", "#1/2", "none"], "b": ["#0.5", "#1/2", "#7", "#7.0"]}
"""Responses to two problems; a's answer is 1, b's 7."""


@pytest.fixture
def verifier():
    with Verifier(rule="numeric", extraction="hash") as made:
        yield made


@pytest.fixture
def prompts() -> list[Prompt]:
    return [Prompt(Problem("a", "?", "1", {}), (5, 6)), Prompt(Problem("b", "?", "7", {}), (5, 7))]


def respond(key: SampleKey) -> ScriptedResponse:
    """The text's characters as token ids; later samples end first."""
    ids = tuple(map(ord, TEXTS[key.problem_id][key.sample_index]))
    return ScriptedResponse(ids, (-0.5 if key.problem_id == "a" else -0.25,) * len(ids), ends_at=-key.sample_index)


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@pytest.fixture
def engine() -> ScriptedEngine:
    made = ScriptedEngine(respond)
    made.sync_weights([], 0)
    return made


# --- what k samples say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 2, 0.5), (4, 0, 3, 0.0), (4, 4, 1, 1.0), (5, 2, 2, 0.7), (5, 2, 4, 1.0), (32, 1, 32, 1.0)],
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n, c, k, expected):
    # (5, 2, 2): 3 of the 10 pairs have no right sample
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (VoteCounts(3, (2, 1), 0), 1.0), (VoteCounts(2, (3,), 5), 0.0), (VoteCounts(2, (2, 1), 0), 1 / 2),
        (VoteCounts(2, (2, 2), 1), 1 / 3), (VoteCounts(0, (), 4), 0.0), (VoteCounts(1, (), 9), 1.0),
    ],
)  # fmt: skip
def test_a_majority_wins_ties_are_split_and_silence_is_no_vote(counts, expected):
    assert consensus(counts) == pytest.approx(expected)


def test_equivalent_wrong_answers_are_one_vote_block(verifier):
    # by text 7 would win with two votes; 1/2, 0.5 and .50 are one answer with three
    answers = [("7", True), ("7", True), ("1/2", False), ("0.5", False), ("2/4", False), (None, False)]
    (counts,) = vote_counts([answers], verifier.equivalent)
    assert counts == VoteCounts(right=2, wrong=(3,), silent=1)
    assert consensus(counts) == 0.0


def test_metrics_of_an_evaluation_are_means_over_problems(prompts, engine, verifier):
    found = evaluate(prompts, 4, engine, verifier, decode, SAMPLING).metrics("x")
    assert found["eval/x/avg@4"] == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert found["eval/x/pass@4"] == 1.0
    assert found["eval/x/cons@4"] == pytest.approx((1 / 3 + 1 / 2) / 2)  # a: 1, 2 and 1/2 tie; b: 7 twice, 1/2 twice
    lengths = [len(text) for texts in TEXTS.values() for text in texts]
    assert found["eval/x/length_mean"] == pytest.approx(np.mean(lengths))
    nats = [len(text) * each for name, each in (("a", 0.5), ("b", 0.25)) for text in TEXTS[name]]
    assert found["eval/x/entropy"] == pytest.approx(sum(nats) / sum(lengths))  # over tokens: by response it is 0.375
    assert found["eval/x/truncated_frac"] == 0.0


def test_with_more_samples_than_k_avg_and_pass_use_all_of_them_and_cons_the_first_k(prompts, engine, verifier):
    found = evaluate(prompts, 2, engine, verifier, decode, SAMPLING, num_samples=4).metrics("x")
    assert found["eval/x/avg@2"] == pytest.approx((1 / 4 + 2 / 4) / 2)  # the first two alone: (1/2 + 0) / 2
    assert found["eval/x/pass@2"] == pytest.approx((1 / 2 + 5 / 6) / 2)  # 1 - C(3, 2) / C(4, 2), 1 - C(2, 2) / C(4, 2)
    assert found["eval/x/cons@2"] == pytest.approx(
        (1 / 2 + 0) / 2
    )  # a: 1 and 2 tie; b: 0.5 and 1/2 agree, and are wrong


def test_a_problem_with_missing_verdicts_weighs_as_much_as_any_other(prompts, engine, verifier, monkeypatch):
    # a: one right of one verdict, three late; b: two right of four; c: no verdict at all
    late, failed = {("a", 1), ("a", 2), ("a", 3)}, {("c", index) for index in range(4)}
    third = Prompt(Problem("c", "?", "1", {}), (5, 8))
    monkeypatch.setitem(TEXTS, "c", ["#1"] * 4)
    samples = [
        replace(s, timed_out=(s.problem_id, s.sample_index) in late, failed=(s.problem_id, s.sample_index) in failed)
        for s in evaluated_samples([*prompts, third], 4, engine, verifier, decode, SAMPLING)
    ]
    evaluation = summarise([*prompts, third], 4, samples, verifier)
    found = evaluation.metrics("x")
    assert found["eval/x/avg@4"] == pytest.approx((1 + 2 / 4) / 2)  # pooled: 3 of 5
    assert found["eval/x/pass@4"] == 1.0
    assert found["eval/x/cons@4"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["eval/x/missing_frac"] == pytest.approx(7 / 12)
    # the command's table has the same three, and lengths over all twelve
    table = summary(pd.DataFrame(map(asdict, samples)), evaluation.vote_counts)
    for name in ("avg@4", "pass@4", "cons@4", "length_mean"):
        assert table[name].mean == pytest.approx(found[f"eval/x/{name}"])


def test_ranks_share_the_problems_and_all_have_the_whole_evaluation(prompts):
    def act(ranks: ThreadRanks) -> tuple[list[str], dict[str, float]]:
        engine = ScriptedEngine(respond)
        engine.sync_weights([], 0)
        with Verifier(rule="numeric", extraction="hash") as own:
            found = evaluate(prompts, 4, engine, own, decode, SAMPLING, ranks)
        return [request.key.problem_id for request in engine.submitted], found.metrics("x")

    (first, metrics), (second, others) = on_ranks(2, act)
    assert (first, second) == (["a"] * 4, ["b"] * 4)
    assert metrics == others


def test_a_run_that_is_asked_to_stop_samples_no_further(prompts, engine, verifier):
    def gives_up(waiting: int) -> bool:
        if engine.yielded:
            raise StopRequestedError
        return False

    with pytest.raises(StopRequestedError):
        evaluate(prompts, 4, engine, verifier, decode, SAMPLING, gives_up=gives_up)
    assert len(engine.yielded) == 1


# --- on disk ---------------------------------------------------------------------------------------------------------


def run(prompts, n, engine, verifier, folder) -> None:
    """Saves what was missing."""
    done = read_samples(folder)
    found = evaluated_samples(prompts, n, engine, verifier, decode, SAMPLING, done.keys())
    write_samples(folder, [*done.values(), *found])


def test_more_samples_and_more_problems_add_to_what_is_there(tmp_path, prompts, engine, verifier):
    run(prompts[:1], 2, engine, verifier, tmp_path)
    run(prompts, 4, engine, verifier, tmp_path)
    keys = [(r.key.problem_id, r.key.sample_index) for r in engine.submitted]
    assert sorted(keys) == sorted(product("ab", range(4)))


def test_a_question_whose_answer_changed_is_asked_anew(tmp_path, prompts, engine, verifier):
    run(prompts, 4, engine, verifier, tmp_path)
    changed = [Prompt(Problem("a", "?", "2", {}), prompts[0].ids), prompts[1]]
    run(changed, 4, engine, verifier, tmp_path)
    assert [r.key.problem_id for r in engine.submitted[8:]] == ["a"] * 4
    evaluation = summarise(changed, 4, read_samples(tmp_path).values(), verifier)
    assert [s.correct for s in evaluation.samples[:4]] == [False, True, False, False]


STORED = {
    "verdicts null": (lambda t: t.assign(correct=None), "row 1: correct is None; it must be a boolean"),
    "verdicts of text": (lambda t: t.assign(correct="x"), "row 1: correct is 'x'; it must be a boolean"),
    "questions null": (lambda t: t.assign(question_digest=None), "row 1: question_digest is None"),
    "samples below 0": (lambda t: t.assign(sample_index=-1), "row 1: sample_index is -1"),
    "half a sample": (lambda t: t.assign(sample_index=0.5), "row 1: sample_index is 0.5; it must be an integer"),
    "log-probs that are not finite": (lambda t: t.assign(logprob=float("-inf")), "row 1: logprob is -inf"),
    "a response of bytes": (lambda t: t.assign(response=b"\xff"), "row 1: response"),
    "a sample twice": (lambda t: pd.concat([t, t]), "row 9: a second sample"),
    "a column less": (lambda t: t.drop(columns="failed"), "cannot be read"),
}


@pytest.mark.parametrize("name", STORED)
def test_a_store_of_samples_of_other_types_is_refused_with_row_and_column(tmp_path, prompts, engine, verifier, name):
    run(prompts, 4, engine, verifier, tmp_path)
    change, reason = STORED[name]
    file = tmp_path / "samples.parquet"
    change(pd.read_parquet(file)).to_parquet(file)
    with pytest.raises(DamagedError, match=f"samples.parquet.*{reason}") as refused:
        read_samples(tmp_path)
    assert "\n" not in str(refused.value)


# --- intervals over questions ----------------------------------------------------------------------------------------


def test_thirty_wrong_questions_do_not_look_certain():
    estimate = share_interval([0.0] * 30)
    assert estimate.mean == 0
    # mean 1/32, sd of thirty-one zeros and a one = sqrt(1/32), t(31) = 2.0395: 0.03125 + 2.0395 * 0.17678 / sqrt(32)
    assert (estimate.low, estimate.high) == (0.0, pytest.approx(0.09498, abs=1e-4))
    assert share_interval([1.0]).low == 0.0
