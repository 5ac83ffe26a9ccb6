"""No model is trained that training computes differently than the model itself: every family is equal, or refused."""

import os
import re

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import ConfigError, parse
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sample, SampleKey
from dapo_lit.policy.attention import layout
from dapo_lit.policy.head import token_logprobs
from dapo_lit.preflight.policy import FAMILIES, check_policy
from dapo_lit.preflight.weights import check_dtype
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import token_batch
from dapo_lit.step.optimizer import Counters, OptimizerSteps
from dapo_lit.step.scoring import PolicyForward, score
from dapo_lit.step.updates import StepUpdates
from dapo_lit.switches.algorithm import objective

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
MORE = {
    "sliding_window": 7,
    "use_sliding_window": True,
    "max_window_layers": 1,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
}
"""Sizes that some families need to be small, and a window shorter than the texts."""
LATENT = {
    "num_key_value_heads": 4,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim"), 8),
}
ADDED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "logit_scale": 0.3, "logits_scaling": 2.5}
"""Set where a family has them, so that they matter at this size."""
MOST_PARAMETERS = 3_000_000
REFUSED = {
    "bert": "unknown reason", "bloom": "do not run on packed sequences",
    "falcon_h1": "hybrid do not keep packed sequences apart", "gpt_oss": "attention sinks",
    "llama4_text": "chunked_attention", "mamba": "do not keep packed sequences apart",
    "modernbert-decoder": "", "phimoe": "attention windows",
    "qwen2_moe": "attention windows",
    "qwen3_next": "linear_attention do not keep packed sequences apart", "recurrent_gemma": "",
}  # fmt: skip


def tiny(family: str) -> PreTrainedModel:
    """A random model of the family, in float32."""
    of_most = (MORE | {"head_dim": 8}, MORE, MORE | LATENT, {"head_dim": 8}, {})
    for sizes in of_most:
        try:
            config = AutoConfig.for_model(family, **(SIZES | sizes))
            if not hasattr(AutoConfig.for_model(family), "sliding_window"):
                config.sliding_window = None
            for name, value in ADDED.items():
                if hasattr(config, name) and not isinstance(getattr(type(config), name, None), property):
                    setattr(config, name, value)
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            if size > MOST_PARAMETERS:
                continue
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            random_weights(model)
            with torch.no_grad():
                model(input_ids=torch.arange(8)[None], use_cache=False)
        except Exception:  # sizes that this family does not take
            continue
        return model
    raise AssertionError(f"no small random model of {family}: give it sizes in MORE or LATENT")


@torch.no_grad()
def random_weights(model: PreTrainedModel) -> None:
    """Large enough for distributions that are far from uniform, biases included."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, 1.5 * 32**-0.5)
        else:
            parameter += 0.3 * torch.randn_like(parameter)


@torch.no_grad()
def difference(model: PreTrainedModel, lengths: tuple[int, ...] = (13, 29)) -> float:
    """Largest difference of the log-probs in training from those of the model with eager attention, in nats."""
    texts = [torch.randint(2, 64, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]
    if model.config._attn_implementation != "eager":
        model.set_attn_implementation("eager")
    own = [model(input_ids=t[None]).logits[0, :-1].log_softmax(-1).gather(-1, t[1:, None])[:, 0] for t in texts]
    starts = [0, lengths[0]]
    rows = torch.cat([torch.arange(s, s + n - 1) for s, n in zip(starts, lengths, strict=True)])
    targets = torch.cat([t[1:] for t in texts])
    found, _ = token_logprobs(model, torch.cat(texts), layout(lengths), rows, targets, temperature=1.0)
    return float((found - torch.cat(own)).abs().max())


def trains(model: PreTrainedModel) -> None:
    """One update of one right and one wrong answer makes the right one more probable."""
    settings = ("algorithm.minibatch_prompts=1", "algorithm.techniques.dynamic_sampling=false")
    config = parse(resolved(composed_tree(["+experiment=four_sums", *settings])))
    group = Group(1, 0, Problem("p", "", ""), 0, np.array([5, 6, 7]))
    for index, ids in enumerate(([8, 9, 10, 11], [12, 13])):
        sample = Sample(SampleKey(1, "p", 0, index), np.array(ids), np.full(len(ids), -4.0, np.float32), True, 0)
        reward = 1.0 - 2 * index
        group.completions.append(Completion(sample, "", Score(index == 0, reward), reward, 0.0, reward))
    batch = token_batch([group], torch.ones(6, dtype=torch.bool), 0)
    goal = objective(config.algorithm, 16)
    forward = PolicyForward(model, None, None, Ranks(), torch.device("cpu"), 1.0, False, False, 64, False)
    tokens, statistics = score(forward, goal, batch)
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "lr_factor": 1.0}], lr=1.0)
    steps = OptimizerSteps(config, optimizer, forward, Counters(), 9, critic_only=False)
    updates = StepUpdates(
        config, goal, forward, steps, Tensor.backward, 9, batch, goal.credit(batch, tokens), statistics
    )
    updates.run()
    gained = score(forward, goal, batch)[0].old_logprobs - tokens.old_logprobs
    assert gained[:4].sum() > 0 > gained[4:].sum()
    assert 0 < updates.metrics()["perf/balance"] <= 1


SOME = (
    "cohere2", "deepseek_v3", "gemma3_text", "gpt2", "gpt_neox", "opt", "llama", "mixtral", "qwen2", "bloom", "gpt_oss",
    "llama4_text", "phimoe",
)  # fmt: skip
"""One of each way in which families differ; `make sweeps` takes all."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted({*FAMILIES, *REFUSED}) if "DAPO_LIT_MATRIX" in os.environ else SOME)
def test_a_family_has_the_models_own_log_probs_or_is_refused(family):
    model = tiny(family)
    refusal = None
    try:
        check_policy(model)
    except ConfigError as error:
        refusal = str(error)
    if refusal is None:
        assert family not in REFUSED
        assert difference(model) < 1e-3
        if family in FAMILIES:
            trains(model)
    else:
        assert family not in FAMILIES, refusal
        assert "\n" not in refusal
        assert REFUSED.get(family, "") in refusal


def llama(**changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**(SIZES | changes))).eval()
    random_weights(model)
    return model


def test_what_neither_attention_nor_head_knows_is_refused_with_the_difference(monkeypatch):
    model = llama()
    check_policy(model)
    plain = model.lm_head.forward
    monkeypatch.setattr(model.lm_head, "forward", lambda hidden: plain(hidden).clamp(max=0.5))
    with pytest.raises(ConfigError, match=r"'llama'.* unknown reason"):
        check_policy(model)


def test_weights_that_are_no_numbers_are_named():
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.mlp\.up_proj\.weight .*NaN"):
        check_policy(model)


def test_the_check_leaves_the_model_and_the_random_numbers_as_they_were():
    model = llama()
    weights, attention = [p.clone() for p in model.parameters()], model.config._attn_implementation
    state = torch.get_rng_state()
    check_policy(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config._attn_implementation == attention
    assert all(torch.equal(p, old) and p.grad is None for p, old in zip(model.parameters(), weights, strict=True))


def test_a_policy_without_weights_is_checked_by_name():
    def empty(family: str, **sizes: object) -> PreTrainedModel:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(SIZES | sizes)))

    assert check_policy(empty("llama")).warnings == ()
    with pytest.raises(ConfigError, match="attention sinks"):
        check_policy(empty("gpt_oss", num_local_experts=4))
    with pytest.raises(ConfigError, match="packed sequences"):
        check_policy(empty("falcon_mamba"))
    (warning,) = check_policy(empty("rwkv")).warnings
    assert "'rwkv'" in warning


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (("policy.dtype=bfloat16",), "policy.dtype=float32 trainer.sharding.dtype=bfloat16"),
        (("policy.dtype=bfloat16", "trainer=fsdp"), "trainer.sharding.dtype=bfloat16"),
    ],
)
def test_16_bit_weights_are_not_trained_themselves(compose, overrides, advice):
    config = compose(*overrides)
    with pytest.raises(ConfigError, match=re.escape(advice)):
        check_dtype(config)


def test_a_pre_trained_policy_with_the_rate_of_a_tiny_one_is_warned_about(compose):
    def lines(*overrides: str) -> tuple[str, ...]:
        return check_dtype(compose("policy.path=somewhere", *overrides)).warnings

    (line,) = lines("algorithm.optimizer.lr=1e-4")
    assert "lr=0.0001" in line
    assert "1e-6" in line
    assert lines("algorithm.optimizer.lr=2e-5") == ()
    assert lines("algorithm.optimizer.lr=1e-4", "policy.lora={rank: 32, alpha: 32}") == ()
    assert lines("algorithm.optimizer.lr=1e-4", "policy.path=null") == ()
