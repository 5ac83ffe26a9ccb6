"""The seeds that vLLM is given with its requests, recorded without vLLM; tests/vllm_runs draws from them."""

import sys
from collections.abc import Iterable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from small_runs import collected_step

from dapo_lit.build.parts import Parts
from dapo_lit.config import Config
from dapo_lit.engines.noise import request_seed
from dapo_lit.engines.protocol import PartialSample, RolloutEngine, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.vllm_engine.stream import VllmStream
from dapo_lit.evaluation.sampled import EVALUATION_STEP

EOS = 1


class RecordingEngine(RolloutEngine):
    """Records the seeds in the place of vLLM's engine, and answers every request with EOS."""

    def __init__(self) -> None:
        self.concurrency = 64
        self.seeds: dict[SampleKey, int] = {}
        self.waiting: list[str] = []

    def sync_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.version = version

    def open(self, sampling: Sampling) -> VllmStream:
        self.stream = VllmStream(self, 4096, [EOS], sampling, self.version)
        return self.stream

    def add_request(self, name: str, prompt: dict, params: SimpleNamespace) -> None:
        self.seeds[self.stream._pending[name].key] = params.seed
        self.waiting.append(name)

    def step(self) -> list[SimpleNamespace]:
        ended = SimpleNamespace(token_ids=[EOS], logprobs=[{EOS: SimpleNamespace(logprob=-1.0)}], finish_reason="stop")
        names, self.waiting = self.waiting, []
        return [SimpleNamespace(finished=True, request_id=name, outputs=[ended]) for name in names]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the stream takes from vLLM."""
    package, parameters = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    package.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    parameters.RequestOutputKind = SimpleNamespace(FINAL_ONLY=2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)


def seeds_of(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, dict]:
    """(training, evaluation): the seed of every request of a run's first step, by its key."""
    engine = RecordingEngine()
    monkeypatch.setattr(Parts, "engine", lambda self: engine)
    collected_step(config, monkeypatch)
    evaluated = {key: seed for key, seed in engine.seeds.items() if key.step == EVALUATION_STEP}
    return {key: seed for key, seed in engine.seeds.items() if key not in evaluated}, evaluated


def test_seed_and_noise_stream_reach_every_request_and_a_repeated_run_has_the_same(compose, monkeypatch):
    small = ("budget.steps=1", "algorithm.techniques.dynamic_sampling=false")
    runs = {
        overrides: seeds_of(compose(*small, *overrides), monkeypatch)
        for overrides in ((), ("seed=1",), ("rollout.noise_stream=1",))
    }
    trained, evaluated = runs[()]
    assert len(trained) == len(set(trained.values())) == 16  # none is None, and no two requests share one
    assert all(0 <= seed < 2**63 for seed in trained.values())
    assert seeds_of(compose(*small), monkeypatch) == (trained, evaluated)
    for overrides in (("seed=1",), ("rollout.noise_stream=1",)):
        assert not set(runs[overrides][0].values()) & set(trained.values()), overrides
    assert runs["rollout.noise_stream=1",][1] == evaluated  # two arms of a placebo are measured with the same noise
    assert not set(runs["seed=1",][1].values()) & set(evaluated.values())


def test_a_response_that_is_continued_draws_other_noise_than_its_first_tokens_did():
    engine = RecordingEngine()
    engine.sync_weights([], 1)
    key = SampleKey(1, "p", 0, 0)
    seeds = []
    for partial in (PartialSample([], [], ()), PartialSample([5, 6], [-1.0, -1.0], ((0, 2),))):
        engine.open(Sampling(8, seed=3)).submit([SampleRequest(key, (4, 5), partial)])
        seeds.append(engine.seeds[key])
    assert seeds == [request_seed(3, key, 0), request_seed(3, key, 2)]
    assert seeds[0] != seeds[1]
