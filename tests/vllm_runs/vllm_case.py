"""A tiny policy, requests to it, episodes of it, and how far an engine's log-probs are from those of transformers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import (
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    Sampling,
    run_to_end,
    token_ids,
)
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.engines.vllm_engine.engine import VllmSettings
from dapo_lit.environments.running import Tool
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rollout.episodes import EpisodeEngine, TurnLimits

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


LIMITS = TurnLimits(turns=4, turn_tokens=9, observation_tokens=8)


def turn_ends(config: Qwen2Config) -> list[int]:
    """The tokens that end a turn, so many that a random policy soon draws one."""
    # vLLM adds that of the config.
    return [*range(3, config.vocab_size, 4), *([] if config.eos_token_id is None else [config.eos_token_id])]


def reply(problem: RewardProblem, responses: Sequence[str]) -> str | None:
    """One to three tokens that follow from all turns; None where the last one's sum is a multiple of 4."""
    total = sum(int(token) for turn in responses for token in turn.split())
    last = sum(int(token) for token in responses[-1].split())
    return None if last % 4 == 0 else " ".join(str(5 + (total + n) % 12) for n in range(1 + total % 3))


def with_turns(engine: RolloutEngine, environment: Any = None, num_problems: int = 8) -> EpisodeEngine:
    """The engine with an environment; texts are numbers of tokens."""
    problems = {f"p{i}": Problem(f"p{i}", "", "") for i in range(num_problems)}
    return EpisodeEngine(
        engine, environment or Tool(reply), LIMITS, lambda key: problems[key.problem_id],
        lambda said: token_ids(map(int, said.split())), lambda ids: " ".join(map(str, ids)),
    )  # fmt: skip


def content(samples: Sequence[Sample]) -> dict[SampleKey, Any]:
    return {
        s.key: (s.row_ids.tolist(), s.observations.places.tolist(), s.ended_by, s.finished, s.versions) for s in samples
    }


def check_episodes(engine: RolloutEngine, model: PreTrainedModel) -> None:
    """Greedy episodes are those of the torch sampler; sampled ones have the log-probs of transformers, at the places of
    the policy's tokens."""
    other = TorchEngine(model.config, eos_ids=turn_ends(model.config))
    for each in (engine, other):
        each.sync_weights(model.state_dict().items(), 1)
    wanted, greedy = requests(num_prompts=8, group=4), Sampling(max_response_tokens=20, temperature=0.0)
    found, expected = ([*with_turns(each).generate(wanted, greedy)] for each in (engine, other))
    assert content(found) == content(expected)
    assert max(len(np.unique(s.observations.places)) for s in found) > 1
    samples = [*with_turns(engine).generate(wanted, Sampling(max_response_tokens=20, temperature=0.8))]
    prompts = {r.key: r.prompt_ids for r in wanted}
    assert {s.key for s in samples} == set(prompts)
    assert {s.ended_by for s in samples} >= {"environment", "turns", "turn_tokens"}
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([prompts[sample.key], sample.row_ids], dtype=np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids[None]).logits[0].double() / 0.8, dim=-1)
        places = torch.from_numpy(sample.observations.row_places(len(sample.response_ids))) + len(prompts[sample.key])
        own = logprobs[places - 1, ids[places]]
        assert (own - torch.from_numpy(sample.rollout_logprobs)).abs().max() < 1e-4
