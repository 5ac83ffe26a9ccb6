"""Episodes of an engine with an environment: whole, whatever interrupts them, and each end by its name."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from test_collect import RULES, by_problem, collector
from thread_ranks import ThreadRanks, on_ranks
from transformers import Qwen2Config, Qwen2ForCausalLM

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sample, SampleKey, SampleRequest, Sampling, run_to_end
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.engine import DecodingBatch, TorchEngine
from dapo_lit.environments.running import Answer, Tool
from dapo_lit.policy.base import character_tokenizer
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rollout.dynamic_sampling import KeepRate
from dapo_lit.rollout.episodes import ENDS, EpisodeEngine, TurnLimits, asked, encoder, num_turns, turn_texts
from dapo_lit.seeds import row_key, uniforms

CHARACTERS = "abcdefgh"
TOKENIZER = character_tokenizer(CHARACTERS)
EOS = 1
LIMITS = TurnLimits(turns=4, turn_tokens=None, observation_tokens=12)
SAMPLING = Sampling(max_response_tokens=24, seed=7)


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=len(TOKENIZER), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128,
    )  # fmt: skip
    made = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(12)  # so that what was seen decides what follows
    return made


MODEL = model()
REQUESTS = [
    SampleRequest(SampleKey(1, f"p{p}", 0, g), tuple(2 + (3 * p + t) % 8 for t in range(1 + p % 4)))
    for p in range(6)
    for g in range(4)
]
PROBLEMS = {f"p{p}": Problem(f"p{p}", "", CHARACTERS[p]) for p in range(6)}


def reply(problem: RewardProblem, responses: Sequence[str]) -> str | None:
    """Ends after a turn with an `a` in it; else up to three letters, by all that was said."""
    said = "".join(responses)
    return None if "a" in responses[-1] else (problem.answer + said)[-1 - len(said) % 3 :]


class Delayed(Tool):
    """An answer is there after so many calls; slow: to one problem only."""

    def __init__(self, step: Callable[..., str | None], calls: int, slow: str = "") -> None:
        super().__init__(step)
        self._calls, self._slow, self._waiting = calls, slow, list[list[Any]]()

    def ask(self, ticket: Any, problem: RewardProblem, responses: Sequence[str]) -> None:
        super().ask(ticket, problem, responses)
        self._waiting.append([self._calls * (self._slow in ("", problem.id)), *super().answers()])

    def answers(self, wait_s: float = 0.0) -> list[Any]:
        for waiting in self._waiting:
            waiting[0] -= 1
        ready = [entry for calls, entry in self._waiting if calls <= 0]
        self._waiting = [each for each in self._waiting if each[0] > 0]
        return ready


def problem_of(key: SampleKey) -> Problem:
    return PROBLEMS[key.problem_id]


def engine(
    environment: Any = None, limits: TurnLimits = LIMITS, max_batch_size: int = 512, template: str = "{observation}"
) -> EpisodeEngine:
    inner = TorchEngine(MODEL.config, eos_ids=[EOS], max_batch_size=max_batch_size)
    inner.sync_weights(MODEL.state_dict().items(), 1)
    return EpisodeEngine(inner, environment or Tool(reply), limits, problem_of, encoder(TOKENIZER, template), decode)


def episodes(requests: Sequence[SampleRequest] = REQUESTS, **given: Any) -> dict[SampleKey, Sample]:
    return {sample.key: sample for sample in engine(**given).generate(requests, SAMPLING)}


def content(samples: dict[SampleKey, Sample]) -> dict[SampleKey, Any]:
    return {
        key: (s.row_ids.tolist(), s.observations.places.tolist(), s.finished, s.ended_by, s.failure)
        for key, s in samples.items()
    }


def assert_same(one: dict[SampleKey, Sample], other: dict[SampleKey, Sample]) -> None:
    assert content(one) == content(other)
    for key, sample in one.items():
        assert sample.rollout_logprobs == pytest.approx(other[key].rollout_logprobs, abs=1e-5)


def test_an_environment_that_never_speaks_changes_no_sample_and_not_their_order():
    silent = list(engine(Tool(lambda problem, responses: None)).generate(REQUESTS, SAMPLING))
    plain = list(engine().sampler.generate(REQUESTS, SAMPLING))
    assert [s.key for s in silent] == [s.key for s in plain]
    for one, other in zip(silent, plain, strict=True):
        assert one.ended_by == ("environment" if other.finished else "tokens")
        assert other == Sample(**vars(one) | {"ended_by": "", "turn_rewards": ()})
        assert not any(one.turn_rewards)


def test_an_episode_is_the_turns_with_what_was_said_to_each_between_them():
    found = episodes()
    assert len(found) == len(REQUESTS)
    assert {num_turns(s) for s in found.values()} == {1, 2, 3, 4}
    for key, sample in found.items():
        problem = PROBLEMS[key.problem_id]
        turns = turn_texts(sample, decode)
        assert asked(problem, sample, decode).turns == turns
        assert "".join(turns) == decode(sample.response_ids.tolist())
        row, own = sample.row_ids.tolist(), sample.observations.row_places(len(sample.response_ids))
        assert [row[place] for place in own] == sample.response_ids.tolist()
        # Between the last token of a turn and the first of the next, what the environment said to all turns so far.
        last = [place for place, after in pairwise(own) if after > place + 1]
        assert [row[place] for place in last] == [EOS] * (len(turns) - 1)
        for number, place in enumerate(last, 1):
            said = reply(RewardProblem("", "", problem.answer), turns[:number])
            assert row[place + 1 : place + 1 + len(said)] == TOKENIZER.encode(said)
        assert len(sample.observations) == len(row) - len(own)
        assert sample.finished == (sample.ended_by == "environment")
        assert sample.finished == ("a" in turns[-1] and row[-1] == EOS)


@pytest.mark.parametrize("max_batch_size", [1, 5])
def test_an_episode_does_not_depend_on_its_batch_nor_on_the_order(max_batch_size):
    shuffled = random.Random(max_batch_size).sample(REQUESTS, len(REQUESTS))
    assert_same(episodes(shuffled, max_batch_size=max_batch_size), episodes())


def test_a_token_is_drawn_with_the_noise_of_its_number_among_the_policys_after_all_that_was_said():
    prompts = {r.key: r.prompt_ids for r in REQUESTS}
    for key, sample in episodes().items():
        row = torch.from_numpy(np.concatenate([prompts[key], sample.row_ids]).astype(np.int64))
        places = len(prompts[key]) + sample.observations.row_places(len(sample.response_ids))
        with torch.no_grad():
            cdf = MODEL(row[None]).logits[0, places - 1].softmax(-1).double().cumsum(-1)
        noise = uniforms(np.full(len(places), row_key(SAMPLING.seed, key), np.uint64), np.arange(len(places)))
        drawn = torch.searchsorted(cdf, torch.from_numpy(noise)[:, None] * cdf[:, -1:], right=True)
        assert drawn[:, 0].tolist() == sample.response_ids.tolist()


def test_a_reproducible_engine_gives_the_same_order_whatever_the_answers_take():
    quick = list(engine(Tool(reply), max_batch_size=5).generate(REQUESTS, SAMPLING))
    slow = list(engine(Delayed(reply, 4), max_batch_size=5).generate(REQUESTS, SAMPLING))
    assert quick == slow


class _Ready(TorchEngine):
    reproducible = False


def test_a_slow_answer_holds_up_no_other_episode_of_an_engine_that_need_not_repeat_itself():
    made = engine(Delayed(reply, 60, slow="p1"))
    made.sampler.__class__ = _Ready
    stream, order = made.open(SAMPLING), list[Sample]()
    stream.submit(REQUESTS)
    while stream.pending:
        order += stream.step()
    assert_same({s.key: s for s in order}, episodes())
    asked_p1 = [place for place, s in enumerate(order) if s.key.problem_id == "p1" and s.response_ids[-1] == EOS]
    assert asked_p1 == list(range(len(order) - len(asked_p1), len(order)))
    assert asked_p1


@pytest.mark.parametrize("answers", [1, 3])
@pytest.mark.parametrize("steps", [1, 3, 6, 10, 15, 22])
def test_an_interrupted_episode_goes_on_as_if_it_never_was(steps, answers):
    """Whether a turn or the environment was under way, and with a new stream and version of the weights."""
    made = engine(Delayed(reply, answers), max_batch_size=9)
    made.sampler.__class__ = _Ready
    stream = made.open(SAMPLING)
    stream.submit(REQUESTS)
    ended = [s for _ in range(steps) for s in stream.step()]
    waiting = {key for key, _ in stream._asking}
    partial = stream.withdraw([r.key for r in REQUESTS])
    assert stream.pending == 0
    assert partial.keys() == {r.key for r in REQUESTS} - {s.key for s in ended}
    assert waiting == {key for key, stopped in partial.items() if stopped.turn_ended}
    for key in waiting:
        assert partial[key].response_ids[-1] == EOS
    made.sync_weights(MODEL.state_dict().items(), 2)
    stream = made.open(SAMPLING)
    stream.submit([SampleRequest(r.key, r.prompt_ids, partial[r.key]) for r in REQUESTS if r.key in partial])
    again = list(run_to_end(stream))
    assert_same({s.key: s for s in [*ended, *again]}, episodes())
    for sample in again:
        known = len(partial[sample.key].response_ids)
        assert sample.num_new_tokens == len(sample.response_ids) - known
        assert sum(count for version, count in sample.versions if version == 2) == len(sample.response_ids) - known
        assert sum(count for version, count in sample.versions if version == 1) == known


def failing(problem: RewardProblem, responses: Sequence[str]) -> str | None:
    return "xyz" if len(responses) == 2 else "b"


def test_every_end_has_its_name_and_every_limit_is_kept():
    ends = set()
    for limits in (LIMITS, TurnLimits(4, 3, 40), TurnLimits(9, None, 3), TurnLimits(1, None, 12)):
        for sample in episodes(limits=limits).values():
            turns, row = turn_texts(sample, decode), sample.row_ids.tolist()
            assert sample.row_ids[-1] == sample.response_ids[-1]  # the policy's
            assert num_turns(sample) == len(turns) <= limits.turns
            assert len(sample.response_ids) <= SAMPLING.max_response_tokens
            assert len(sample.observations) <= limits.observation_tokens
            assert len(sample.response_ids) + len(sample.observations) == len(row)
            if limits.turn_tokens:
                cuts = [0, *np.unique(sample.observations.places).tolist(), len(sample.response_ids)]
                assert max(np.diff(cuts)) <= limits.turn_tokens
                if sample.ended_by == "turn_tokens":
                    assert cuts[-1] - cuts[-2] == limits.turn_tokens
                    assert row[-1] != EOS
            if sample.ended_by == "turns":
                assert len(turns) == limits.turns
                assert row[-1] == EOS
            if sample.ended_by == "tokens":
                assert len(sample.response_ids) == SAMPLING.max_response_tokens
            ends.add(sample.ended_by)
    for sample in episodes(environment=Tool(failing)).values():
        if sample.ended_by == "failed":
            assert num_turns(sample) == 2
            assert "xyz" in sample.failure
            assert not sample.finished
            ends.add("failed")
    assert ends == set(ENDS)
    # Where the limit ends it, what was said is not looked at.
    last = episodes(environment=Tool(failing), limits=TurnLimits(2, None, 12)).values()
    assert "failed" not in {sample.ended_by for sample in last}
    assert "turns" in {sample.ended_by for sample in last}


def test_a_failed_environment_ends_its_episode_and_no_other():
    class Fails(Tool):
        def answers(self, wait_s: float = 0.0) -> list[Any]:
            return [
                (ticket, Answer(error="broken") if ticket[0].problem_id == "p2" else answer)
                for ticket, answer in super().answers()
            ]

    found, whole = episodes(environment=Fails(reply)), episodes()
    others = {key for key in whole if key.problem_id != "p2"}
    assert content({key: found[key] for key in others}) == content({key: whole[key] for key in others})
    failed = [s for s in found.values() if s.key.problem_id == "p2" and s.failure]
    assert failed
    assert {(s.failure, s.ended_by, s.finished) for s in failed} == {("broken", "failed", False)}


def test_a_template_goes_around_an_observation_which_spells_no_special_token():
    encode = encoder(TOKENIZER, "<|endoftext|>b{observation}c")
    letters = dict(zip(CHARACTERS, range(2, 10), strict=True))
    assert encode("ad").tolist() == [EOS, letters["b"], letters["a"], letters["d"], letters["c"]]
    # what the vocabulary lacks is dropped: `<|endoftext|>` has these letters of it
    assert encode("<|endoftext|>").tolist()[2:-1] == [letters[c] for c in "edfe" if c in letters]


def test_attributes_of_the_engine_are_those_of_the_one_that_draws():
    made = engine(max_batch_size=3)
    assert (made.version, made.concurrency, made.reproducible, made.draws) == (1, 3, True, True)
    made.sync_weights(MODEL.state_dict().items(), 5)
    assert made.version == made.sampler.version == 5


def test_of_ranks_that_share_an_engine_the_first_asks_and_all_go_on_alike():
    asked_by_another: list[Any] = []

    class Silent(Tool):
        def ask(self, *given: Any) -> None:
            asked_by_another.append(given)  # what it raises is the first rank's to say

    def on_rank(ranks: ThreadRanks) -> list[Sample]:
        made = engine(Silent(reply) if ranks.rank else Delayed(reply, 3))
        made.sampler.__class__, made.ranks = _Ready, ranks
        return list(made.generate(REQUESTS, SAMPLING))

    one, other = on_ranks(2, on_rank, per_engine=2)
    assert asked_by_another == []
    assert one == other
    assert_same({s.key: s for s in one}, episodes())


@pytest.mark.parametrize("call", ["ask", "answers"])
def test_an_environment_that_cannot_go_on_ends_all_ranks_that_share_its_engine(call):
    class Broken(Delayed): ...

    def gone(*given: Any) -> Any:
        raise RuntimeError("its processes are gone")

    setattr(Broken, call, gone)

    def on_rank(ranks: ThreadRanks) -> tuple[str, bool]:
        made = engine(Broken(reply, 3))
        made.sampler.__class__, made.ranks = _Ready, ranks
        with pytest.raises(RuntimeError) as ended:
            list(made.generate(REQUESTS, SAMPLING))
        # What the ranks do together next is one exchange for both.
        return str(ended.value), ranks.any_of_engine(True)

    (first, one), (second, other) = on_ranks(2, on_rank, per_engine=2)
    assert first == "its processes are gone"
    assert first in second
    assert one is other is True


def test_a_late_answer_to_a_withdrawn_question_is_not_that_to_the_same_question_asked_again():
    class Late(Tool):
        asked: tuple[Any, ...] = ()
        ready: tuple[Any, ...] = ()

        def ask(self, ticket: Any, *given: Any) -> None:
            self.asked += (ticket,)

        def answers(self, wait_s: float = 0.0) -> list[Any]:
            ready, self.ready = self.ready, ()
            return [(ticket, Answer(error="reached its deadline")) for ticket in ready]

    environment = Late(reply)
    made = engine(environment)
    made.sampler.__class__ = _Ready
    partials: dict[SampleKey, Any] = {}
    for again in (False, True):
        stream = made.open(SAMPLING)
        before, environment.asked = environment.asked, ()
        stream.submit([replace(r, partial=partials.get(r.key, r.partial)) for r in REQUESTS])
        for _ in range(12):
            stream.step()
        environment.ready = before
        assert not any(sample.ended_by == "failed" for sample in stream.step())
        assert not again or {key for key, *_ in before} & {key for key, *_ in environment.asked}
        partials = stream.withdraw([r.key for r in REQUESTS])


def test_episodes_that_wait_for_a_slow_answer_leave_their_places_to_other_groups():
    """Where an engine has places for one group, all groups of a step wait at the same time."""

    class Slow(Tool):
        most = 0

        def answers(self, wait_s: float = 0.0) -> list[Any]:
            waiting = {ticket[0].problem_id for ticket, _ in self._ready}
            self.most, waits = max(self.most, len(waiting)), len(waiting) > self.most
            # Nothing is asked any more: there is no place, or no group is wanted.
            return super().answers(wait_s) if wait_s and not waits else []

    made, environment = collector(by_problem({})), Slow(lambda problem, responses: None)
    made.keep_rate = KeepRate(kept=100, generated=100)
    inner = made.setup.engine
    inner.concurrency, inner.reproducible = RULES.samples_per_prompt, False
    problems = {prompt.problem.id: prompt.problem for prompt in made.setup.prompts}
    encode = encoder(TOKENIZER, "{observation}")
    made.setup.engine = EpisodeEngine(inner, environment, LIMITS, lambda key: problems[key.problem_id], encode, decode)
    step = made.collect(1, 0)
    assert len(step.accepted) == RULES.num_prompts
    assert environment.most == RULES.num_prompts


@pytest.mark.parametrize("max_batch_size", [1, 5, 512])
def test_the_torch_engine_gives_the_same_episode_in_its_row_and_from_a_prefill(monkeypatch, max_batch_size):
    """In its row unless an environment says more than is there already; an episode that enters anew is prefilled."""
    prefilled, prefill = [], Decoder.prefill

    def counted(self: Decoder, prompts: Sequence[Any]) -> Any:
        prefilled.extend(len(prompt) for prompt in prompts)
        return prefill(self, prompts)

    def much(problem: RewardProblem, responses: Sequence[str]) -> str | None:
        return None if "a" in responses[-1] else CHARACTERS * (len(responses) % 2) + "b"

    limits = TurnLimits(turns=4, turn_tokens=None, observation_tokens=40)
    monkeypatch.setattr(Decoder, "prefill", counted)
    for environment in (reply, much):
        given = {"environment": Tool(environment), "limits": limits, "max_batch_size": max_batch_size}
        prefilled.clear()
        in_rows, in_row_tokens = episodes(**given), sum(prefilled)
        with monkeypatch.context() as patch:
            patch.setattr(DecodingBatch, "_goes_on", lambda self, request: False)
            prefilled.clear()
            assert_same(episodes(**given), in_rows)
        assert in_row_tokens < sum(prefilled)
        said = {len(ids) for sample in in_rows.values() for _, ids in sample.observations.by_place}
        assert said == ({1, 2, 3} if environment is reply else {1, 9})
        if max_batch_size == 512:  # all enter together, each group's prompt once
            assert (in_row_tokens == sum(len(r.prompt_ids) for r in REQUESTS[::4])) == (environment is reply)


def test_a_run_that_was_asked_to_stop_waits_for_no_answer():
    made = engine(Delayed(reply, 10**9))
    made.stop_requested = lambda: True
    stream = made.open(SAMPLING)
    stream.submit(REQUESTS)
    # With a reproducible engine, which otherwise waits for every answer: this would never return.
    list(run_to_end(stream, lambda: bool(stream._asking)))
    assert stream.withdraw([request.key for request in REQUESTS])
    assert stream.pending == 0


def test_what_an_environment_says_must_be_of_the_vocabulary():
    made = engine(Tool(lambda problem, responses: "b"))
    made.encode = lambda said: np.array([len(TOKENIZER)], np.int32)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        list(made.generate(REQUESTS, SAMPLING))
