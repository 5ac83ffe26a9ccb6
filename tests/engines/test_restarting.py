"""An engine that fails is started again once, and loses nothing."""

import pytest
import torch
from scripted_engine import ScriptedEngine, ScriptedResponse, ScriptedStream
from transformers import Qwen2Config

from dapo_lit.engines.protocol import Sample, SampleKey, SampleRequest, Sampling
from dapo_lit.engines.restarting import EngineFailedError, RestartingEngine
from dapo_lit.engines.vllm_engine.engine import VllmSettings, check_cache

REQUESTS = [SampleRequest(SampleKey(1, f"p{i}", 0, 0), (1,)) for i in range(3)]


class Dying(ScriptedStream):
    """Raises when the second sample is due."""

    def step(self) -> list[Sample]:
        if self._engine.yielded:
            raise OSError("worker 0 died")
        return super().step()


class DyingEngine(ScriptedEngine):
    def open(self, sampling: Sampling) -> Dying:
        return Dying(self, sampling.max_response_tokens, self.version)


def script(key: SampleKey) -> ScriptedResponse:
    return ScriptedResponse((5,), (-0.5,), ends_at=float(key.problem_id[1:]))


def restarting(*engines: ScriptedEngine) -> RestartingEngine:
    waiting = iter(engines)
    made = RestartingEngine(lambda: next(waiting))
    made.sync_weights([("w", torch.ones(2))], version=7)
    return made


def test_after_a_failure_a_new_engine_has_the_weights_and_the_unfinished_requests(capsys):
    first, second = DyingEngine(script), ScriptedEngine(script)
    samples = list(restarting(first, second).generate(REQUESTS, Sampling(max_response_tokens=4)))
    assert [s.key for s in samples] == [r.key for r in REQUESTS]
    assert first.closed
    assert (second.version, second.weights["w"].tolist()) == (7, [1.0, 1.0])
    assert second.submitted == REQUESTS[1:]
    assert "OSError: worker 0 died" in capsys.readouterr().out


def test_a_second_failure_with_the_same_weights_names_the_prompts():
    made = restarting(DyingEngine(script), DyingEngine(script))  # each gives one sample before it dies
    with pytest.raises(EngineFailedError, match=r"worker 0 died.*p2"):
        list(made.generate(REQUESTS, Sampling(max_response_tokens=4)))


def test_with_new_weights_it_may_fail_again():
    made = restarting(DyingEngine(script), DyingEngine(script), ScriptedEngine(script))
    assert len(list(made.generate(REQUESTS[:2], Sampling(max_response_tokens=4)))) == 2
    made.sync_weights([("w", torch.ones(2))], version=8)
    assert len(list(made.generate(REQUESTS[:2], Sampling(max_response_tokens=4)))) == 2


def test_too_small_a_cache_says_how_much_is_needed():
    config = Qwen2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    # 2 (keys, values) x 2 layers x 1 head x 32 dimensions x 4 bytes = 512 bytes a token, x 2^20 tokens = 0.5 GiB
    settings = VllmSettings(max_model_tokens=2**20, max_batch_size=8, kv_cache_gb=0.25)
    with pytest.raises(ValueError, match=r"kv_cache_gb=0.25 .* 0.5 GiB.* 4 GiB"):
        check_cache(config, torch.float32, settings)
    check_cache(config, torch.float16, settings)
