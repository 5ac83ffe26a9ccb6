"""A tiny policy, requests to it, and how far an engine's log-probs are from those of transformers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from dapo_lit.engines.protocol import PartialSample, RolloutEngine, SampleKey, SampleRequest, Sampling, run_to_end
from dapo_lit.engines.vllm_engine.engine import VllmSettings

EOS = 3
CONFIG = Qwen2Config(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True,
)  # fmt: skip
SETTINGS = VllmSettings(max_model_tokens=64, max_batch_size=16, kv_cache_gb=0.25)


def random_model(config: Qwen2Config) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def requests(num_prompts: int = 4, group: int = 3) -> list[SampleRequest]:
    return [SampleRequest(SampleKey(1, f"p{i}", 0, j), (5 + i, 6, 7)) for i in range(num_prompts) for j in range(group)]


def largest_difference(engine: RolloutEngine, model: PreTrainedModel, temperature: float, eos: int = EOS) -> float:
    """Between the engine's log-probs and those of transformers on the same tokens."""
    prompts = {r.key: r.prompt_ids for r in requests()}
    samples = list(engine.generate(requests(), Sampling(max_response_tokens=20, temperature=temperature)))
    assert {s.key for s in samples} == set(prompts)
    worst = 0.0
    for sample in samples:
        assert sample.finished == (sample.response_ids[-1] == eos)
        ids = torch.from_numpy(np.concatenate([prompts[sample.key], sample.response_ids], dtype=np.int64))[None]
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].double() / temperature, dim=-1)
        start = len(prompts[sample.key])
        expected = logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        worst = max(worst, float((expected - torch.from_numpy(sample.rollout_logprobs)).abs().max()))
    return worst


def check_new_weights(engine: RolloutEngine, model: PreTrainedModel, eos: int = EOS) -> None:
    """The engine samples from the model's weights after each sync, and not before it."""
    engine.sync_weights(model.state_dict().items(), 1)
    assert largest_difference(engine, model, 0.8, eos) < 1e-4
    for name in ("model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"):  # the second is the head as well
        tensor = model.get_parameter(name)
        with torch.no_grad():
            tensor.add_(0.5 * torch.randn_like(tensor))
        assert largest_difference(engine, model, 1.0, eos) > 1e-2, name
        engine.sync_weights(model.state_dict().items(), 2)
        assert largest_difference(engine, model, 1.0, eos) < 1e-4, name


def check_withdrawn_go_on(
    engine: RolloutEngine,
    model: PreTrainedModel,
    wanted: Sequence[SampleRequest],
    limit: int,
    stops: Callable[[Any], bool],
) -> list[PartialSample]:
    """Responses that are withdrawn once `stops` is true of the stream keep their tokens, log-probs and versions."""
    engine.sync_weights(model.state_dict().items(), 4)
    stream = engine.open(Sampling(max_response_tokens=limit))
    stream.submit(wanted)
    ended = []
    while stream.pending and not stops(stream):
        ended += stream.step()
    partial = stream.withdraw([r.key for r in wanted])
    assert stream.pending == 0
    assert len(partial) + len(ended) == len(wanted)
    engine.sync_weights(model.state_dict().items(), 5)
    stream = engine.open(Sampling(max_response_tokens=limit))
    stream.submit([replace(r, partial=partial[r.key]) for r in wanted if r.key in partial])
    for sample in run_to_end(stream):
        before, count = partial[sample.key], len(partial[sample.key].response_ids)
        assert count < len(sample.response_ids) <= limit
        assert sample.response_ids[:count].tolist() == before.response_ids.tolist()
        assert sample.rollout_logprobs[:count].tolist() == before.rollout_logprobs.tolist()
        assert sample.versions == ((4, count), (5, len(sample.response_ids) - count))[not count :]
    return [*partial.values()]
