"""vLLM's asynchronous scheduler with a batch in flight, a GPU's default, which dapo_lit switches off.

Engine, scheduler, step loop and output processor are vLLM's own; the executor draws from a script. What dapo_lit does
while a batch is in flight (withdraw, new weights, sleep) loses no token and mixes none.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import Qwen2Config

from dapo_lit.engines.protocol import PartialSample, Sample, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.vllm_engine import engine as module
from dapo_lit.engines.vllm_engine.engine import VllmEngine
from dapo_lit.engines.vllm_engine.options import VllmSettings, llm_options
from dapo_lit.engines.vllm_engine.stream import VllmStream

pytest.importorskip("vllm.entrypoints", reason="make test-gpu-contracts runs these")
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

EOS, PROMPT_TOKENS, BLOCK = 3, 40, 32
"""The cache shares whole blocks: of a prompt one, the rest is computed anew."""
CONFIG = Qwen2Config(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=256,
)  # fmt: skip


def token(version: int, length: int, place: int) -> int:
    """At `place` of a response that ends after `length` tokens, from the weights of `version`."""
    return EOS if place == length - 1 else 4 + 30 * (version % 2) + place


def logprob(version: int, place: int) -> float:
    return -version - place / 64


class ScriptedExecutor(Executor):
    """Draws the next token of every scheduled request, with the weights that are loaded when the batch is launched.

    The first token of a prompt is the length of its response.
    """

    made: ClassVar["ScriptedExecutor"]

    def _init_executor(self) -> None:
        ScriptedExecutor.made = self
        self.version = -1
        self.lengths: dict[str, int] = {}
        self.batch: dict[str, int] = {}
        """The place in its response of each request's next token."""
        self.from_cache: list[int] = []
        """Prompt tokens that each new request found in the prefix cache."""
        self.events: list[str] = []

    def check_health(self) -> None:
        pass

    def compile_or_warm_up_model(self) -> None:
        pass

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block=False):
        known = {
            "get_kv_cache_spec": self.cache_spec,
            "get_supported_kv_cache_layouts": lambda: ["NHD", "HND"],
            "determine_available_memory": lambda: 10**7,
            "get_supported_tasks": lambda: ("generate",),
            "reload_weights": self.reload_weights,
            "sleep": lambda level: self.events.append("sleep"),
            "wake_up": lambda tags: self.events.append(f"wake {' '.join(tags)}"),
        }
        return [known.get(method, lambda *_, **__: None)(*args, **(kwargs or {}))]

    def cache_spec(self) -> dict[str, Any]:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
        return {"model.layers.0.self_attn.attn": spec}

    def reload_weights(self, weights_iterator: Any) -> None:
        list(weights_iterator)
        self.version += 1
        self.events.append("weights")

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        computed = {}
        for new in scheduler_output.scheduled_new_reqs:
            self.lengths[new.req_id] = new.prompt_token_ids[0]
            self.from_cache.append(new.num_computed_tokens)
            computed[new.req_id] = new.num_computed_tokens
        running = scheduler_output.scheduled_cached_reqs
        computed |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        scheduled = scheduler_output.num_scheduled_tokens
        self.batch = {name: computed[name] + number - PROMPT_TOKENS for name, number in scheduled.items()}
        return done(None)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        ids = [[token(self.version, self.lengths[name], place)] for name, place in self.batch.items()]
        values = [[logprob(self.version, place)] for place in self.batch.values()]
        rows = {name: row for row, name in enumerate(self.batch)}
        logprobs = LogprobsLists(np.array(ids), np.array(values), np.ones(len(ids)))
        return done(ModelRunnerOutput(list(rows), rows, ids, logprobs))


def done(value: Any) -> Future:
    future: Future = Future()
    future.set_result(value)
    return future


@contextmanager
def scripted_engine(**options: Any) -> Iterator[VllmEngine]:
    from vllm.envs import disable_envs_cache
    from vllm.platforms.cpu import CpuPlatform

    of_cpu = CpuPlatform.check_and_update_config

    def as_on_a_gpu(platform: Any, config: Any) -> None:
        of_cpu(config)
        config.scheduler_config.async_scheduling = True

    disable_envs_cache()  # of another engine in this process
    scripted = {"distributed_executor_backend": ScriptedExecutor, "enable_sleep_mode": False} | options
    settings = VllmSettings(max_model_tokens=128, max_batch_size=4, kv_cache_gb=0.01, sleep=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(as_on_a_gpu))
        patch.setattr(module, "llm_options", lambda *given: llm_options(*given) | scripted)
        made = VllmEngine(CONFIG, eos_ids=[EOS], dtype=torch.float32, settings=settings)
    core = made.llm.llm_engine.engine_core.engine_core
    assert (core.step_fn.__name__, core.batch_queue_size) == ("step_with_batch_queue", 2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def started():
    with scripted_engine() as made:
        yield made


@pytest.fixture
def engine(started):
    return synced(started)


def synced(made: VllmEngine) -> VllmEngine:
    """The engine with the next version of the weights."""
    version = ScriptedExecutor.made.version + 1
    made.sync_weights([(name, torch.zeros(1)) for name in sorted(made._model._names)], version)
    return made


def requests(*lengths: int) -> list[SampleRequest]:
    prompt = (5,) * (PROMPT_TOKENS - 1)
    return [SampleRequest(SampleKey(1, "p", 0, n), (length, *prompt)) for n, length in enumerate(lengths)]


def with_a_batch_in_flight(made: VllmEngine, given: list[SampleRequest], steps: int) -> VllmStream:
    stream = made.open(Sampling(max_response_tokens=40))
    stream.submit(given)
    for _ in range(steps):
        assert stream.step() == []
    assert made.llm.llm_engine.engine_core.engine_core.batch_queue
    return stream


def drained(stream: VllmStream) -> dict[int, Sample]:
    found = {}
    while stream.pending:
        found |= {sample.key.sample_index: sample for sample in stream.step()}
    return found


def is_scripted(ids: Any, logprobs: Any, versions: list[int], length: int) -> bool:
    """versions: of the weights that draw each token."""
    places = list(enumerate(versions))
    expected = [logprob(version, place) for place, version in places]
    return ids.tolist() == [token(v, length, place) for place, v in places] and np.allclose(logprobs, expected)


def test_more_responses_than_places_come_back_whole_and_end_where_they_end(engine):
    lengths = (3, 9, 1, 5, 12, 2, 7)
    stream = engine.open(Sampling(max_response_tokens=10))
    stream.submit(requests(*lengths))
    samples = drained(stream)
    for index, length in enumerate(lengths):
        sample, versions = samples[index], [engine.version] * min(length, 10)
        assert is_scripted(sample.response_ids, sample.rollout_logprobs, versions, length)
        assert sample.finished == (length <= 10)
    assert engine.preemptions == 0


def test_a_sample_withdrawn_with_a_batch_in_flight_keeps_its_tokens_and_goes_on_under_the_next_weights(engine):
    first, given = engine.version, requests(20, 9)
    stream = with_a_batch_in_flight(engine, given, steps=6)
    partial = stream.withdraw([given[0].key])[given[0].key]
    begun = len(partial.response_ids)
    assert begun > 0
    assert is_scripted(partial.response_ids, partial.rollout_logprobs, [first] * begun, 20)
    other = drained(stream)[1]
    assert is_scripted(other.response_ids, other.rollout_logprobs, [first] * 9, 9)
    stream = synced(engine).open(Sampling(max_response_tokens=40))
    stream.submit([replace(given[0], partial=partial)])
    whole = drained(stream)[0]
    versions = [first] * begun + [first + 1] * (20 - begun)
    assert is_scripted(whole.response_ids, whole.rollout_logprobs, versions, 20)
    assert whole.earlier_versions == ((first, begun),)


@pytest.mark.parametrize("sleeps", [False, True])
def test_after_new_weights_nothing_comes_from_the_batch_that_was_in_flight_nor_from_its_prefix_cache(engine, sleeps):
    executor, old, given = ScriptedExecutor.made, engine.version, requests(20, 20)
    executor.from_cache.clear()
    stream = with_a_batch_in_flight(engine, given, steps=4)
    stream.submit(requests(20))
    stream.step()
    assert executor.from_cache == [0, BLOCK, BLOCK]
    stream.withdraw([request.key for request in given])
    executor.events.clear()
    if sleeps:
        engine.release_memory()
    stream = synced(engine).open(Sampling(max_response_tokens=40))
    assert executor.events == (["sleep", "wake weights", "weights", "wake kv_cache"] if sleeps else ["weights"])
    executor.from_cache.clear()
    stream.submit(requests(6))
    sample = drained(stream)[0]
    assert executor.from_cache == [0]
    assert is_scripted(sample.response_ids, sample.rollout_logprobs, [old + 1] * 6, 6)


def test_the_next_turn_of_an_episode_takes_the_turns_before_it_from_the_prefix_cache(engine):
    executor, (request,) = ScriptedExecutor.made, requests(30)
    stream = engine.open(Sampling(max_response_tokens=60))
    stream.submit([request])
    turn = drained(stream)[0]
    executor.from_cache.clear()
    seen = turn.observations.followed_by([7, 8, 9], 30)
    partial = PartialSample(turn.response_ids, turn.rollout_logprobs, turn.versions, seen)
    stream.submit([replace(request, partial=partial)])
    stream.step()
    # The last token of the turn was never run through the model, and whole blocks are shared.
    assert executor.from_cache == [(PROMPT_TOKENS + 29) // BLOCK * BLOCK]
    stream.withdraw([request.key])


@pytest.mark.usefixtures("started")
def test_a_warning_of_vllm_is_printed_once_and_one_of_what_is_done_on_purpose_never(capsys):
    for name in ("RotaryEmbedding", "Linear", "Linear"):
        logging.getLogger("vllm.model_executor").warning("%s: Failed to load weights", name)
    assert capsys.readouterr().out == "vLLM warning: Linear: Failed to load weights\n"


def test_a_full_cache_costs_preemptions_but_no_token_and_a_runner_of_the_environment_is_in_the_facts(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)  # as on a GPU
    with scripted_engine(num_gpu_blocks_override=7) as made:
        assert made.facts | {"vllm": ""} == {"vllm": "", "runner": "V2", "async_scheduling": True, "attention": []}
        stream = synced(made).open(Sampling(max_response_tokens=40))
        stream.submit(requests(40, 40, 40, 40))  # together 9 blocks
        samples = drained(stream)
        assert made.preemptions > 0
    for sample in samples.values():
        assert is_scripted(sample.response_ids, sample.rollout_logprobs, [0] * 40, 40)
