"""A network with wider attention heads computes what the policy's own does."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PretrainedConfig, Qwen2Config, Qwen3Config

from dapo_lit.engines.vllm_engine.engine import CPU_HEAD_DIMS
from dapo_lit.engines.vllm_engine.wide_heads import WideHeads, head_dim_of, wide_heads

SIZES = {
    "vocab_size": 50,
    "hidden_size": 72,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def as_phi3(wide: LlamaConfig, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The network that a llama config with partial rotary describes. transformers' own llama rotates whole heads; its
    phi3 is the same network with fused matrices and partial rotary, without biases, which are added here."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    config = Phi3Config(**{n: getattr(wide, n) for n in names}, rope_parameters=wide.rope_parameters, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    fused = {name: t for name, t in tensors.items() if not any(part in name for part in ("q_proj", "k_proj", "v_proj"))}
    for i, layer in enumerate(model.model.layers):
        attention, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        for kind in ("weight", "bias"):
            if attention + f"q_proj.{kind}" in tensors:
                fused[attention + f"qkv_proj.{kind}"] = torch.cat(
                    [tensors[f"{attention}{p}_proj.{kind}"] for p in "qkv"]
                )
        if attention + "q_proj.bias" in tensors:
            layer.self_attn.qkv_proj.bias = torch.nn.Parameter(torch.empty_like(fused[attention + "qkv_proj.bias"]))
        fused[mlp + "gate_up_proj.weight"] = torch.cat([fused.pop(mlp + f"{p}_proj.weight") for p in ("gate", "up")])
    model.load_state_dict(fused)
    return model


@pytest.mark.parametrize(
    ("config", "width"),
    [
        (Qwen2Config(**SIZES, tie_word_embeddings=True), 32),  # heads of 18
        (LlamaConfig(**SIZES, head_dim=34, tie_word_embeddings=False), 64),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_wider_heads_give_the_same_logits_in_float64(config: PretrainedConfig, width: int):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    heads = wide_heads(config, CPU_HEAD_DIMS)
    assert heads == WideHeads(head_dim_of(config), width)
    described = heads.config(config)
    assert described.qkv_bias == (config.model_type == "qwen2")
    wide = as_phi3(described, {name: heads.tensor(name, t) for name, t in model.state_dict().items()})
    ids = torch.randint(0, 50, (2, 40))
    with torch.no_grad():
        expected, found = model(ids).logits, wide(ids).logits
    assert expected.std() > 1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    # The angles are those of the narrow width; a factor of 1 would give others.
    assert (wide.model.rotary_emb.inv_freq == model.model.rotary_emb.inv_freq).all()


def test_rows_of_each_head_are_followed_by_zeros_and_q_is_scaled():
    heads = WideHeads(narrow=2, wide=8)  # sqrt(8 / 2) = 2
    bias = torch.tensor([1.0, 2.0, 3.0, 4.0])
    layer = "model.layers.0.self_attn."
    assert heads.tensor(f"{layer}v_proj.bias", bias).tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]
    assert heads.tensor(f"{layer}q_proj.bias", bias).tolist() == [2, 4, 0, 0, 0, 0, 0, 0, 6, 8, 0, 0, 0, 0, 0, 0]
    output = heads.tensor(f"{layer}o_proj.weight", bias[None])
    assert output.tolist() == [[1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0]]
    assert heads.tensor("model.layers.0.mlp.up_proj.weight", bias) is bias


def test_the_rotated_share_gives_the_narrow_width_back_for_every_pair_of_widths():
    config = Qwen2Config(**SIZES)
    for wide in CPU_HEAD_DIMS:
        for narrow in range(2, wide, 2):
            factor = WideHeads(narrow, wide).config(config).rope_parameters["partial_rotary_factor"]
            assert 0 < factor <= 1
            assert int(wide * factor) == narrow


def test_a_width_that_vllm_has_is_left_alone():
    assert wide_heads(Qwen2Config(hidden_size=64, num_attention_heads=2), CPU_HEAD_DIMS) is None
    assert wide_heads(Qwen3Config(hidden_size=96, num_attention_heads=4, head_dim=32), CPU_HEAD_DIMS) is None


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SIZES, head_dim=24),  # norms of q and k
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=0),
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
        LlamaConfig(**SIZES, head_dim=514),
    ],
)
def test_a_network_that_wider_heads_would_change_is_refused(config: PretrainedConfig):
    with pytest.raises(
        ValueError, match=r"heads of \d+ dimensions, only for .*: take another policy, or rollout=torch"
    ):
        wide_heads(config, CPU_HEAD_DIMS)
