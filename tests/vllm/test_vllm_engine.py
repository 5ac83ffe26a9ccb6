"""vLLM for real, on the CPU. `make test-vllm` runs this folder in the environment of `make vllm-cpu`."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from dapo_lit.rollout.engine import SampleRequest, Sampling, run_to_end
from dapo_lit.rollout.records import SampleKey
from dapo_lit.rollout.vllm_engine import VllmEngine, VllmSettings

EOS = 3
CONFIG = Qwen2Config(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
NARROW = Qwen2Config(**{**CONFIG.to_dict(), "hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3})
"""Heads of 24 dimensions, as policies made here have, which vLLM on the CPU serves as heads of 32."""
SETTINGS = VllmSettings(max_model_tokens=64, max_batch_size=16, kv_cache_gb=0.25)


def random_model(config: Qwen2Config) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return random_model(CONFIG)


@pytest.fixture(scope="module")
def engine():
    made = VllmEngine(CONFIG, eos_ids=[EOS], dtype=torch.float32, settings=SETTINGS)
    yield made
    made.close()


def requests(num_prompts: int = 4, group: int = 3) -> list[SampleRequest]:
    return [SampleRequest(SampleKey(1, f"p{i}", 0, j), (5 + i, 6, 7)) for i in range(num_prompts) for j in range(group)]


def largest_difference(engine: VllmEngine, model: PreTrainedModel, temperature: float) -> float:
    """Between the engine's log-probs and those of transformers on the same tokens."""
    prompts = {r.key: r.prompt_ids for r in requests()}
    samples = list(engine.generate(requests(), Sampling(max_response_tokens=20, temperature=temperature)))
    assert {s.key for s in samples} == set(prompts)
    worst = 0.0
    for sample in samples:
        assert sample.finished == (sample.response_ids[-1] == EOS)
        ids = torch.tensor([prompts[sample.key] + sample.response_ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].double() / temperature, dim=-1)
        start = len(prompts[sample.key])
        expected = logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        worst = max(worst, float((expected - torch.tensor(sample.rollout_logprobs)).abs().max()))
    return worst


def test_after_a_change_of_any_tensor_the_engine_samples_from_the_new_weights(engine, model):
    threads = torch.get_num_threads()
    engine.sync_weights(model.state_dict().items(), 1)
    assert largest_difference(engine, model, temperature=0.8) < 1e-4
    for name in ("model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"):  # the second is the head as well
        tensor = model.get_parameter(name)
        with torch.no_grad():
            tensor.add_(0.5 * torch.randn_like(tensor))
        assert largest_difference(engine, model, temperature=1.0) > 1e-2, name
        engine.sync_weights(model.state_dict().items(), 2)
        assert largest_difference(engine, model, temperature=1.0) < 1e-4, name
    torch.set_num_threads(threads)
    assert torch.get_num_threads() == threads


def test_heads_that_vllm_has_no_kernel_for_are_served_by_wider_ones():
    model = random_model(NARROW)
    narrow = VllmEngine(NARROW, eos_ids=[EOS], dtype=torch.float32, settings=SETTINGS)
    try:
        for version, name in enumerate(("q_proj.weight", "k_proj.bias", "v_proj.weight", "o_proj.weight")):
            with torch.no_grad():
                model.get_parameter(f"model.layers.1.self_attn.{name}").mul_(1.5)
            narrow.sync_weights(model.state_dict().items(), version)
            assert largest_difference(narrow, model, temperature=0.8) < 1e-4, name
    finally:
        narrow.close()


def test_a_tensor_that_is_not_sent_is_named(engine, model):
    left_out = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(ValueError, match=f"{left_out} is missing"):
        engine.sync_weights([(n, t) for n, t in model.state_dict().items() if n != left_out], 3)
    with pytest.raises(RuntimeError, match="sync_weights"):
        engine.open(Sampling(max_response_tokens=4))


def test_withdrawn_responses_go_on_with_their_tokens_log_probs_and_versions(engine, model):
    engine.sync_weights(model.state_dict().items(), 4)
    stream = engine.open(Sampling(max_response_tokens=30))
    wanted = requests(group=1)
    stream.submit(wanted)
    ended = [s for _ in range(6) for s in stream.step()]
    begun = stream.withdraw([r.key for r in wanted])
    assert stream.pending == 0
    assert len(begun) + len(ended) == len(wanted)
    engine.sync_weights(model.state_dict().items(), 5)
    stream = engine.open(Sampling(max_response_tokens=30))
    stream.submit([replace(r, begun=begun[r.key]) for r in wanted if r.key in begun])
    for sample in run_to_end(stream):
        before = begun[sample.key]
        assert 0 < len(before.response_ids) < len(sample.response_ids) <= 30
        assert sample.response_ids[: len(before.response_ids)] == before.response_ids
        assert sample.versions == (4,) * len(before.response_ids) + (5,) * (
            len(sample.response_ids) - len(before.response_ids)
        )


def test_a_prompt_that_leaves_no_room_for_the_response_is_refused(engine, model):
    engine.sync_weights(model.state_dict().items(), 6)
    stream = engine.open(Sampling(max_response_tokens=30))
    with pytest.raises(ValueError, match="has 40 tokens; with 30 of the response it must fit into 64"):
        stream.submit([SampleRequest(SampleKey(1, "long", 0, 0), tuple(range(4, 44)))])
