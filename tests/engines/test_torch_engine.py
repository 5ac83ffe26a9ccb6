"""The torch sampler against transformers' own forward pass, and what an engine promises."""

import dataclasses
import random
import re

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from dapo_lit.engines.protocol import (
    NO_TOKENS,
    PartialSample,
    Sample,
    SampleKey,
    SampleRequest,
    Sampling,
    TokenIds,
    run_to_end,
)
from dapo_lit.engines.torch_engine.decoder import Decoder
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.engines.torch_engine.rows import draw
from dapo_lit.seeds import row_key, uniforms

VOCAB = 40
EOS = 3
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
ARCHITECTURES = {
    "llama": LlamaConfig(**SHAPE),
    "llama, all biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama, llama3 rope": LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2, yarn rope": Qwen2Config(**SHAPE, rope_parameters=YARN),
    "qwen3": Qwen3Config(**SHAPE, head_dim=12),
    "qwen3, one key head a query": Qwen3Config(**{**SHAPE, "num_key_value_heads": 4}, head_dim=8),
    "mistral": MistralConfig(**SHAPE),
    "mistral, window of 6": MistralConfig(**SHAPE, sliding_window=6),
    "qwen2, window of 5 in the second layer": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
}


def make_model(config: PretrainedConfig, *, tied: bool = False, seed: int = 0) -> PreTrainedModel:
    """Random weights, norms and biases included, large enough that a wrong one shows."""
    config = type(config).from_dict({**config.to_dict(), "tie_word_embeddings": tied})
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.25 * noise)
    return model


def make_engine(
    model: PreTrainedModel, *, version: int = 1, eos_ids: tuple[int, ...] = (EOS,), **options
) -> TorchEngine:
    engine = TorchEngine(model.config, eos_ids=eos_ids, **options)
    engine.sync_weights(model.state_dict().items(), version)
    return engine


def make_requests(num_prompts: int, group: int) -> list[SampleRequest]:
    """Groups of prompts of 1 to 11 tokens."""
    return [
        SampleRequest(SampleKey(1, f"p{p}", 0, g), tuple(5 + (7 * p + t) % (VOCAB - 5) for t in range(1 + 4 * p % 11)))
        for p in range(num_prompts)
        for g in range(group)
    ]


def forced_logprobs(model: PreTrainedModel, prompt: TokenIds, sample: Sample, temperature: float) -> torch.Tensor:
    """Log-probs [T, V] of every token at every position of the response, from one forward pass over the whole."""
    ids = torch.from_numpy(np.concatenate([prompt, sample.response_ids], dtype=np.int64))[None]
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1)


def assert_logprobs_are_forced(model: PreTrainedModel, requests: list[SampleRequest], samples: list[Sample], t: float):
    prompts = {request.key: request.prompt_ids for request in requests}
    assert sorted(prompts, key=str) == sorted((sample.key for sample in samples), key=str)
    for sample in samples:
        logprobs = forced_logprobs(model, prompts[sample.key], sample, t)
        expected = logprobs.gather(-1, torch.from_numpy(sample.response_ids).long()[:, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(sample.rollout_logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "tied"), [*((name, False) for name in ARCHITECTURES), ("llama", True), ("qwen2", True)]
)
def test_log_probs_equal_a_teacher_forced_pass_of_transformers(name, tied):
    # Ten places for 18 requests of unequal prompts: rows leave, others enter, the cache grows beyond its first slots.
    model = make_model(ARCHITECTURES[name], tied=tied)
    requests = make_requests(num_prompts=6, group=3)
    sampling = Sampling(max_response_tokens=90, temperature=1.3)
    samples = list(make_engine(model, max_batch_size=10).generate(requests, sampling))
    assert max(len(sample.response_ids) for sample in samples) > 64
    assert_logprobs_are_forced(model, requests, samples, 1.3)


def test_a_groups_samples_are_computed_together_while_their_tokens_are_the_same(monkeypatch):
    model, decoded = make_model(ARCHITECTURES["qwen3"]), list[int]()
    sampling = Sampling(30, temperature=0.1)  # few tokens are likely, so prefixes repeat
    apart = make_requests(num_prompts=6, group=8)
    apart.sort(key=lambda request: request.key.sample_index)  # neighbours have other prompts
    together = sorted(apart, key=lambda request: request.key.problem_id)
    decode = Decoder.decode

    def counting(self: Decoder, tokens: torch.Tensor, *others: object) -> torch.Tensor:
        decoded.append(len(tokens))
        return decode(self, tokens, *others)

    monkeypatch.setattr(Decoder, "decode", counting)
    found = []
    for requests in (apart, together):
        decoded.clear()
        samples = make_engine(model, max_batch_size=20).generate(requests, sampling)
        tokens = {sample.key: sample.response_ids.tolist() for sample in samples}
        found.append((sum(decoded), tokens))
    (computed_apart, tokens), (computed_together, same_tokens) = found
    assert same_tokens == tokens
    distinct = {(key.problem_id, *ids[:n]) for key, ids in tokens.items() for n in range(1, len(ids))}
    assert len(distinct) <= computed_together < 0.8 * computed_apart


def test_temperature_0_follows_the_likeliest_token_with_log_prob_0():
    model = make_model(ARCHITECTURES["qwen3"])
    requests = make_requests(3, 2)
    for sample in make_engine(model).generate(requests, Sampling(20, temperature=0.0)):
        prompt = next(request.prompt_ids for request in requests if request.key == sample.key)
        assert forced_logprobs(model, prompt, sample, 1.0).argmax(-1).tolist() == sample.response_ids.tolist()
        assert not sample.rollout_logprobs.any()


def by_key(samples: list[Sample]) -> dict[SampleKey, Sample]:
    return {sample.key: sample for sample in samples}


@pytest.mark.parametrize("max_batch_size", [1, 3, 7])
def test_a_seed_fixes_the_samples_whatever_the_batch_size_and_the_order(max_batch_size):
    model = make_model(ARCHITECTURES["qwen2"])
    requests = make_requests(num_prompts=5, group=3)
    sampling = Sampling(max_response_tokens=40, seed=11)
    reference = by_key(list(make_engine(model).generate(requests, sampling)))
    random.Random(max_batch_size).shuffle(requests)
    got = by_key(list(make_engine(model, max_batch_size=max_batch_size).generate(requests, sampling)))
    assert got.keys() == reference.keys()
    for key, sample in got.items():
        assert sample.response_ids.tolist() == reference[key].response_ids.tolist()
        assert sample.rollout_logprobs == pytest.approx(reference[key].rollout_logprobs, abs=1e-5)
    assert len({sample.response_ids.tobytes() for sample in reference.values()}) == len(requests)


def test_every_eos_id_ends_a_response_and_stays_in_it():
    model = make_model(ARCHITECTURES["llama"])
    requests = make_requests(4, 8)
    eos_ids = (3, 9, 21)
    samples = list(make_engine(model, eos_ids=eos_ids).generate(requests, Sampling(60)))
    for sample in samples:
        assert not set(sample.response_ids[:-1].tolist()) & set(eos_ids)
        assert sample.finished == (sample.response_ids[-1] in eos_ids)
        assert len(sample.response_ids) == len(sample.rollout_logprobs)
    assert {sample.response_ids[-1] for sample in samples if sample.finished} == set(eos_ids)
    assert_logprobs_are_forced(model, requests, samples, 1.0)


def test_a_response_cut_at_the_limit_is_unfinished_and_one_that_ends_there_is_finished():
    engine = make_engine(make_model(ARCHITECTURES["llama"]))
    requests = make_requests(4, 4)
    whole = by_key(list(engine.generate(requests, Sampling(80))))
    limit = sorted(len(sample.response_ids) for sample in whole.values())[len(whole) // 2]
    outcomes = set()
    for sample in engine.generate(requests, Sampling(limit)):
        full = whole[sample.key]
        assert sample.response_ids.tolist() == full.response_ids[:limit].tolist()
        assert sample.finished == (full.finished and len(full.response_ids) <= limit)
        outcomes.add((sample.finished, len(sample.response_ids) == limit))
    assert outcomes == {(True, False), (True, True), (False, True)}


def test_samples_come_from_the_weights_synced_last_and_carry_their_version():
    old, new = (make_model(ARCHITECTURES["qwen2"], seed=seed) for seed in (0, 1))
    engine = make_engine(old, version=1)
    requests = make_requests(2, 2)
    before = list(engine.generate(requests, Sampling(10)))
    engine.sync_weights(new.named_parameters(), version=7)
    after = list(engine.generate(requests, Sampling(10)))
    assert [{sample.policy_version for sample in samples} for samples in (before, after)] == [{1}, {7}]
    assert_logprobs_are_forced(new, requests, after, 1.0)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.layers.1.self_attn.k_proj.bias", None),  # missing
        ("model.layers.2.mlp.up_proj.weight", torch.zeros(48, 32)),  # of a third layer
        ("model.norm.weight", torch.zeros(31)),
        ("lm_head.weight", torch.zeros(VOCAB, 32)),  # the embedding is another one
    ],
)
def test_weights_that_do_not_fit_are_named_and_nothing_is_sampled_from_them(name, tensor):
    model = make_model(ARCHITECTURES["qwen2"], tied=True)
    engine, changed = make_engine(model), model.state_dict() | {name: tensor}
    with pytest.raises(ValueError, match=re.escape(name)):
        engine.sync_weights([(n, t) for n, t in changed.items() if t is not None], version=2)
    with pytest.raises(RuntimeError, match="sync_weights"):
        engine.generate(make_requests(1, 1), Sampling(4))


def test_weights_that_are_not_finite_end_the_sampling():
    model = make_model(ARCHITECTURES["qwen2"])
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[0] = torch.nan
    with pytest.raises(FloatingPointError, match="version 1"):
        list(make_engine(model).generate(make_requests(1, 2), Sampling(4)))


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (GPT2Config(), "gpt2"),
        (LlamaConfig(**SHAPE, hidden_act="gelu"), "gelu"),
        (LlamaConfig(**SHAPE, rope_parameters=DYNAMIC), "dynamic"),
    ],
)
def test_an_architecture_that_would_be_computed_wrongly_is_refused(config, named):
    with pytest.raises(ValueError, match=named):
        TorchEngine(config, eos_ids=[EOS])


def test_cache_memory_that_held_nan_gives_the_same_samples(monkeypatch):
    """Longer prompts enter beside rows under way, so the cache is laid out anew with slots that no row has written."""
    model, rng = make_model(ARCHITECTURES["qwen2"]), np.random.default_rng(0)
    lengths = (2, 3, 2, 4, 40, 3, 60, 5, 2, 90, 7, 3)
    requests = [
        SampleRequest(SampleKey(0, f"p{i}", 0, 0), tuple(rng.integers(4, 40, length).tolist()))
        for i, length in enumerate(lengths)
    ]

    def samples() -> dict[SampleKey, list[int]]:
        engine = make_engine(model, max_batch_size=4)
        return {s.key: s.response_ids.tolist() for s in engine.generate(requests, Sampling(20))}

    expected, empty = samples(), torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda like, *size: empty(like, *size).fill_(torch.nan))
    assert samples() == expected


def test_a_withdrawn_response_continues_as_if_never_interrupted():
    model = make_model(ARCHITECTURES["qwen2"])
    engine = make_engine(model, max_batch_size=6)
    requests = make_requests(4, group=3)
    sampling = Sampling(max_response_tokens=12, seed=3)
    whole = {s.key: s for s in engine.generate(requests, sampling)}
    stream = engine.open(sampling)
    stream.submit(requests)
    ended = [s for _ in range(4) for s in stream.step()]
    partial = stream.withdraw([r.key for r in requests])
    assert stream.pending == 0
    assert any(len(p.response_ids) for p in partial.values())
    assert any(p == NO_TOKENS for p in partial.values())  # those that had not entered the batch
    engine.sync_weights(model.state_dict().items(), version=2)
    stream = engine.open(sampling)
    stream.submit([dataclasses.replace(r, partial=partial[r.key]) for r in requests if r.key in partial])
    for sample in [*ended, *run_to_end(stream)]:
        want = whole[sample.key]
        assert (sample.response_ids.tolist(), sample.finished) == (want.response_ids.tolist(), want.finished)
        assert sample.rollout_logprobs == pytest.approx(want.rollout_logprobs, abs=1e-5)
        known = len(partial[sample.key].response_ids) if sample.key in partial else len(sample.response_ids)
        new = len(sample.response_ids) - known
        assert sample.versions == tuple(run for run in ((1, known), (2, new)) if run[1])


OBSERVED = (7, 8, 9, 10, 11)


def two_turns(model: PreTrainedModel, requests: list[SampleRequest], max_batch_size: int) -> list[Sample]:
    """Turns of at most 6 and 20 tokens with an observation between them, of a length that differs by prompt."""
    engine, sampling = make_engine(model, max_batch_size=max_batch_size), Sampling(26, seed=5)
    firsts = [dataclasses.replace(request, most_tokens=6) for request in requests]
    turned = {request.key: request for request in requests}
    again = []
    for sample in engine.generate(firsts, sampling):
        assert len(sample.response_ids) <= 6
        request = turned[sample.key]
        count = len(request.prompt_ids) % 5
        so_far = PartialSample(sample.response_ids, sample.rollout_logprobs, sample.versions)
        seen = so_far.observations.followed_by(OBSERVED[:count], len(sample.response_ids))
        again.append(dataclasses.replace(request, partial=dataclasses.replace(so_far, observations=seen)))
    return list(engine.generate(again, sampling))


def test_an_episode_has_the_log_probs_of_its_whole_row_and_noise_by_the_policys_tokens():
    model = make_model(ARCHITECTURES["qwen2"])
    requests = make_requests(num_prompts=6, group=3)
    prompts = {request.key: request.prompt_ids for request in requests}
    lengths = set()
    for sample in two_turns(model, requests, max_batch_size=7):
        prompt, places = prompts[sample.key], sample.observations.row_places(len(sample.response_ids))
        row = torch.from_numpy(np.concatenate([prompt, sample.row_ids], dtype=np.int64))
        with torch.no_grad():
            logits = model(row[None]).logits[0].float()[len(prompt) - 1 + places]
        forced = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(sample.response_ids).long()[:, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(sample.rollout_logprobs), forced, atol=1e-5, rtol=0)
        # The noise of a token: that of its number among the policy's tokens, whatever was seen before it.
        noise = uniforms(np.array([row_key(5, sample.key)], np.uint64), np.arange(len(places)))
        tokens, _ = draw(logits, torch.from_numpy(noise), Sampling(26, seed=5))
        assert tokens.tolist() == sample.response_ids.tolist()
        lengths.add(len(sample.observations))
    assert lengths == {len(prompt) % 5 for prompt in prompts.values()} == {0, 1, 2, 4}


@pytest.mark.parametrize("max_batch_size", [1, 4])
def test_an_episode_does_not_depend_on_its_batch(max_batch_size):
    model, requests = make_model(ARCHITECTURES["llama"]), make_requests(num_prompts=5, group=3)
    reference = by_key(two_turns(model, requests, max_batch_size=512))
    random.Random(max_batch_size).shuffle(requests)
    got = by_key(two_turns(model, requests, max_batch_size))
    assert {key: s.row_ids.tolist() for key, s in got.items()} == {
        key: s.row_ids.tolist() for key, s in reference.items()
    }
    for key, sample in got.items():
        assert sample.rollout_logprobs == pytest.approx(reference[key].rollout_logprobs, abs=1e-5)
