"""A step that ends early where its samples could not be drawn again: what was sampled is kept, whatever ended it."""

import pytest
from scripted_engine import ScriptedEngine, ScriptedStream
from test_streaming import half_done

from dapo_lit.engines.protocol import EngineError, PartialSample, Sample, SampleKey, Sampling
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.step_collection import LostSampleError


class Failing(ScriptedStream):
    """Gives a few samples; then the engine's failure, and nothing back."""

    def step(self) -> list[Sample]:
        if len(self._engine.yielded) >= self._engine.gives:
            raise self._engine.failure
        return super().step()

    def withdraw(self, keys: list[SampleKey]) -> dict[SampleKey, PartialSample]:
        raise AssertionError("the engine is gone")


class FailingEngine(ScriptedEngine):
    gives = 1
    failure: Exception = EngineError("vLLM failed")

    def open(self, sampling: Sampling) -> Failing:
        return Failing(self, sampling.max_response_tokens, self.version)


def with_failing_engine(failure: Exception, gives: int = 1) -> Collector:
    made = half_done("none")
    made.setup.engine = FailingEngine(made.setup.engine.response, reproducible=False)
    made.setup.engine.failure, made.setup.engine.gives = failure, gives
    made.setup.engine.sync_weights([], version=0)
    return made


@pytest.mark.parametrize("failure", [EngineError("vLLM failed"), LostSampleError("lacks 1 prompt")])
def test_an_engine_that_is_gone_takes_no_sample_with_it_that_had_ended(failure):
    made = with_failing_engine(failure)
    with pytest.raises(type(failure)):
        made.collect(1, 0)
    assert made.interrupted.tokens_generated == 4
    assert [len(g.scored) for g in made.interrupted.groups] == [1, 0, 0]
    resumed = half_done("none")
    resumed.load_state_dict(made.state_dict())
    step = resumed.collect(1, 0)
    assert resumed.setup.engine.yielded[0].sample_index == 1  # the first sample is not sampled again
    uninterrupted = half_done("none").collect(1, 0)
    assert [c.sample for c in step.accepted[0].completions] == [c.sample for c in uninterrupted.accepted[0].completions]
