"""Episodes of several turns: an engine with an environment is an engine whose samples are whole episodes.

`EpisodeEngine` stands between whatever asks for samples (a rollout step, an evaluation) and the engine that draws
tokens. When the policy ends a turn with its EOS token, the environment is asked what follows; what it says is appended
as tokens, and the engine is asked to continue the row, like a response that was interrupted. So everything else about
samples holds for episodes without knowing of them: order of acceptance, withdrawal, carry-over, noise by the number of
the sampled token.

An environment is a function of the problem and of the policy's turns, so nothing of an episode needs to be saved but
its tokens and the rewards of its turns. One that is interrupted while the environment is asked is given back with its
whole turn, and the question is asked again. To draw the turn's EOS token again would let turns go on that had ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import (
    EngineError,
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    SampleStream,
    Sampling,
    TokenIds,
)
from dapo_lit.ranks import SINGLE_PROCESS, Ranks
from dapo_lit.rewards.functions import RewardProblem

if TYPE_CHECKING:
    from dapo_lit.environments.running import Answer, Environment

ENDS = ("environment", "turns", "turn_tokens", "tokens", "observation_tokens", "failed")
"""What ends an episode: its environment; the limit of turns, of a turn's tokens, of the policy's tokens, of all tokens
of the environment; an environment that failed or was late. An episode that a limit ends is truncated."""
WAIT_S = 0.5
"""Seconds in which the answer of an environment is awaited at a time."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class TurnLimits:
    turns: int
    """Most turns of the policy."""
    turn_tokens: int | None
    """Most tokens of a turn; None: only max_response_tokens, which is of all turns together."""
    observation_tokens: int
    """Most tokens of an environment in an episode."""


def turn_texts(sample: Sample, decode: Decode) -> tuple[str, ...]:
    """The policy's turns of an episode as texts; () of a sample without an environment."""
    if not sample.ended_by:
        return ()
    cuts = np.unique(sample.observations.places)
    return tuple(decode(ids.tolist()) for ids in np.split(sample.response_ids, cuts))


def num_turns(sample: Sample) -> int:
    """Turns of the policy."""
    return 1 + len(np.unique(sample.observations.places))


def asked(problem: Problem, sample: Sample, decode: Decode, name: str = "", *, with_ids: bool = False) -> RewardProblem:
    """The problem as rewards and environments see it, for this sample. name: of the sample, in training."""
    turns = turn_texts(sample, decode)
    ids = tuple(sample.response_ids.tolist()) if with_ids else ()
    return RewardProblem(problem.id, problem.problem, problem.answer, problem.meta, name, turns, ids)


class EpisodeEngine(RolloutEngine):
    """The engine `sampler` with an environment.

    problem_of: the problem that a sample answers.
    encode: from what the environment says to the tokens that are appended.
    decode: a turn as the environment reads it.
    ranks: those that may share the engine.
    stop_requested: whether the run was asked to stop, which then waits for no answer.
    """

    def __init__(
        self,
        sampler: RolloutEngine,
        environment: Environment,
        limits: TurnLimits,
        problem_of: Callable[[SampleKey], Problem],
        encode: Callable[[str], TokenIds],
        decode: Decode,
        ranks: Ranks = SINGLE_PROCESS,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sampler = sampler
        self.environment, self.limits, self.problem_of = environment, limits, problem_of
        self.encode, self.decode, self.ranks, self.stop_requested = encode, decode, ranks, stop_requested
        self.questions = count()
        """Numbers the questions of all streams: a late answer to a withdrawn one is not that of its repetition."""

    def __getattribute__(self, name: str) -> Any:
        # Those of the engine: attributes of the class RolloutEngine would hide them from `__getattr__`.
        if name in RolloutEngine.__annotations__:
            return getattr(self._sampler, name)
        return super().__getattribute__(name)

    @property
    def sampler(self) -> RolloutEngine:
        return self._sampler

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._sampler.sync_weights(named_tensors, version)

    def open(self, sampling: Sampling) -> EpisodeStream:
        return EpisodeStream(self, sampling)

    def release_memory(self) -> None:
        self._sampler.release_memory()

    def close(self) -> None:
        self.environment.close()
        self._sampler.close()


class EpisodeStream(SampleStream):
    """The stream of an EpisodeEngine. Episodes that end in one step come in the order in which their turns ended."""

    def __init__(self, engine: EpisodeEngine, sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling
        self._stream = engine.sampler.open(sampling)
        self._requests: dict[SampleKey, SampleRequest] = {}  # as they were asked for
        # Episodes whose environment is asked, by a ticket: the answer to one that is withdrawn finds none.
        self._asking: dict[tuple[SampleKey, int], Sample] = {}
        self._failure: Exception | None = None  # of the environment, on the rank that asks it

    @property
    def pending(self) -> int:
        return self._stream.pending + len(self._asking)

    @property
    def waiting(self) -> int:
        return self._stream.waiting + len(self._asking)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        self._requests |= {request.key: request for request in requests}
        self._stream.submit([self._as_turn(request) for request in requests if not request.partial.turn_ended])
        for key, turn in ((r.key, r.partial) for r in requests if r.partial.turn_ended):
            version, _ = turn.versions[-1]
            self._ask(turn.ended(key, (), (), finished=True, version=version))

    def _as_turn(self, request: SampleRequest) -> SampleRequest:
        """With the limit of the turn that it starts or continues."""
        most, places = self._engine.limits.turn_tokens, request.partial.observations.places
        if most is not None:
            most += int(places[-1]) if len(places) else 0
        return replace(request, most_tokens=most, is_turn=True)

    def step(self) -> list[Sample]:
        ended: list[Sample] = []
        for turn in self._stream.step() if self._stream.pending else ():
            # The weights are those of the step: what was sampled in this step is one run, however many turns it has.
            sample = replace(turn, earlier_versions=self._requests[turn.key].partial.versions)
            if sample.finished:
                self._ask(sample)
            else:
                cut = len(sample.response_ids) >= self._sampling.max_response_tokens
                ended.append(self._end(sample, "tokens" if cut else "turn_tokens"))
        for sample, answer in self._answered():
            ended += self._take(sample, answer)
        return ended

    def _ask(self, sample: Sample) -> None:
        engine = self._engine
        ticket = sample.key, next(engine.questions)
        self._asking[ticket] = sample
        if not engine.ranks.leads_engine:
            return
        # The text of a turn is that of its tokens: marked as an episode's, whose turns are told apart.
        problem = asked(engine.problem_of(sample.key), replace(sample, ended_by="turns"), engine.decode)
        try:
            engine.environment.ask(ticket, problem, problem.turns)
        except Exception as error:
            self._failure = error  # raised once all ranks of the engine are there

    def _answered(self) -> list[tuple[Sample, Answer]]:
        """Episodes whose environment has answered, in the order in which it was asked."""
        if not self._asking:
            return []
        ranks = self._engine.ranks
        # Ranks that share an engine make the same calls of it; asked by each, an answer could be late on one of them.
        found, failure = ranks.from_leader(self._answers_or_error() if ranks.leads_engine else ({}, None))
        if failure is not None:
            raise self._failure or EngineError(f"the environment on another rank: {failure}")
        ready = [ticket for ticket in self._asking if ticket in found]
        return [(self._asking.pop(ticket), found[ticket]) for ticket in ready]

    def _answers_or_error(self) -> tuple[dict[Hashable, Answer], str | None]:
        """With the words of what failed: raised here alone, it would leave the other ranks of the engine waiting."""
        if self._failure is None:
            try:
                return self._answers(), None
            except Exception as error:
                self._failure = error
        return {}, f"{type(self._failure).__name__}: {self._failure}"

    def _answers(self) -> dict[Hashable, Answer]:
        """The answers that are there, by ticket; waits for one where nothing else is to be done."""
        environment, found = self._engine.environment, dict(self._engine.environment.answers())
        if self._engine.reproducible:
            # An engine that gives the same batches to the same requests must not depend on how long an answer takes.
            while not found.keys() >= self._asking.keys():
                found |= dict(environment.answers(WAIT_S))
                if self._engine.stop_requested():
                    break
        elif not self._stream.pending and not found:
            found |= dict(environment.answers(WAIT_S))
        return found

    def _take(self, sample: Sample, answer: Answer) -> list[Sample]:
        """The episode, if it ends here; else the engine goes on with it."""
        if answer.error is not None:
            return [replace(self._end(sample, "failed"), failure=answer.error)]
        sample = replace(sample, turn_rewards=(*sample.turn_rewards, answer.reward))
        if answer.observation is None:
            return [self._end(sample, "environment")]
        limits, so_far = self._engine.limits, len(sample.response_ids)
        # What the policy would not answer to is left out: the last token of an episode is the policy's.
        if num_turns(sample) >= limits.turns:
            return [self._end(sample, "turns")]
        if so_far >= self._sampling.max_response_tokens:
            return [self._end(sample, "tokens")]
        seen = sample.observations.followed_by(self._engine.encode(answer.observation), so_far)
        if len(seen) == len(sample.observations):
            error = f"no token of the policy's vocabulary is in {answer.observation[:60]!r}"
            return [replace(self._end(sample, "failed"), failure=f"the environment's answer: {error}")]
        if len(seen) > limits.observation_tokens:
            return [self._end(sample, "observation_tokens")]
        partial = PartialSample(
            sample.response_ids, sample.rollout_logprobs, sample.versions, seen, turn_rewards=sample.turn_rewards
        )
        self._stream.submit([self._as_turn(replace(self._requests[sample.key], partial=partial))])
        return []

    def _end(self, sample: Sample, end: str) -> Sample:
        assert end in ENDS
        del self._requests[sample.key]
        return replace(sample, ended_by=end, finished=end == "environment")

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        wanted = frozenset(keys)
        found = self._stream.withdraw(wanted)
        dropped = [ticket for ticket in self._asking if ticket[0] in wanted]
        for ticket in dropped:
            turn = self._asking.pop(ticket)
            found[ticket[0]] = PartialSample(
                turn.response_ids,
                turn.rollout_logprobs,
                turn.versions,
                turn.observations,
                turn_ended=True,
                turn_rewards=turn.turn_rewards,
            )
        if dropped and self._engine.ranks.leads_engine:
            self._engine.environment.withdraw(dropped)
        for key in found:
            del self._requests[key]
        return found


def encoder(tokenizer: Any, template: str) -> Callable[[str], TokenIds]:
    """From what an environment says to tokens: in its place in the template, whose special tokens are the only ones.

    A tool's output that spells a special token gets the tokens of its letters: it cannot end a turn or open another.
    """
    before, _, after = template.partition("{observation}")

    def encoded(text: str, **given: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, **given)["input_ids"]) if text else []

    start, end = encoded(before), encoded(after)
    return lambda said: np.array([*start, *encoded(said, split_special_tokens=True), *end], np.int32)
