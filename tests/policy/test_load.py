"""Models from folders, every EOS id, and what is said when there is no model."""

import json
from pathlib import Path

import pytest
import torch
from tiny_policy import TINY
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer, response_text, save_policy
from dapo_lit.policy.sharding import empty_model

ARCHITECTURE = TINY | {"hidden_size": 32, "intermediate_size": 64}
CHATML = "{% for m in messages %}{{ '<|pad|>' + m['role'] + m['content'] + '<|end|>' }}{% endfor %}"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return character_tokenizer("abcdefghijklmnopqrstuvwxyz")


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return random_model(ARCHITECTURE, tokenizer, seed=0)


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[2, 3, 4, 5]])).logits


def test_a_folder_gives_the_model_that_was_saved_in_the_dtype_asked_for(model, tokenizer, tmp_path):
    save_policy(tmp_path / "m", model, tokenizer, {})
    read = load_model(tmp_path / "m")
    assert not read.training
    assert torch.equal(logits(read), logits(model))
    assert load_model(str(tmp_path / "m"), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert load_tokenizer(tmp_path / "m").encode("az") == [2, 27]
    tokenizer.pad_token = None
    save_policy(tmp_path / "no_pad", model, tokenizer, {})
    assert load_tokenizer(tmp_path / "no_pad").pad_token_id == tokenizer.eos_token_id == 1


def test_eos_ids_are_those_of_generation_config_config_tokenizer_and_chat_turn(model, tokenizer):
    assert eos_ids(model, tokenizer) == (1,)
    model.generation_config.eos_token_id = [1, 5]
    model.config.eos_token_id = 7
    assert eos_ids(model, tokenizer) == (1, 5, 7)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = CHATML
    assert eos_ids(model, tokenizer) == (1, 5, 7, 28)


WEIGHTS = "model.safetensors"


def changed(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"lm_head.weight": Path("/")}, folder / "pytorch_model.bin")


def empty(folder: Path) -> PreTrainedModel:
    return empty_model(folder, torch.float32)


TRUNCATED = r"m/model\.safetensors is .*truncated"
DAMAGE = [
    (load, change, said)
    for load in (load_model, empty)
    for change, said in (
        (lambda m: (m / WEIGHTS).write_bytes((m / WEIGHTS).read_bytes()[:-700]), TRUNCATED),
        (lambda m: (m / WEIGHTS).write_bytes(b""), TRUNCATED),
        (lambda m: changed(m, intermediate_size=48), r"m: .*mlp.*\(32, 64\) for \(32, 48\)"),
        (
            lambda m: changed(m, num_hidden_layers=2, layer_types=["full_attention"] * 2),
            r"m: .* not in the files, such as model\.layers\.1",
        ),
    )
] + [
    (load_model, lambda m: (m / "config.json").write_text("{"), r"m: .*config\.json"),
    (load_model, lambda m: (m / "config.json").unlink(), r"config\.json"),
    (load_model, pickled, "pickle"),
    (load_tokenizer, lambda m: (m / "tokenizer.json").write_text("{"), r"m: .*tokenizer"),
    (load_tokenizer, lambda m: (m / "tokenizer.json").unlink(), r"tokenizer\.json"),
]


@pytest.mark.parametrize(("load", "damage", "said"), DAMAGE)
def test_a_folder_that_is_damaged_or_of_another_model_gets_one_line(
    model, tokenizer, tmp_path, load, damage, said, capfd
):
    save_policy(tmp_path / "m", model, tokenizer, {})
    load(tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(OSError, match=said) as caught:
        load(tmp_path / "m")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # transformers' own report of what does not fit


def test_a_sharded_policy_whose_experts_the_files_keep_apart_is_refused_by_name(tokenizer, tmp_path):
    sizes = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "vocab_size": 40}
    config = AutoConfig.for_model("qwen3_moe", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, **sizes)
    save_policy(tmp_path / "m", AutoModelForCausalLM.from_config(config), tokenizer, {})
    load_model(tmp_path / "m")
    with pytest.raises(OSError, match=r"fsdp .* qwen3_moe"):
        empty_model(tmp_path / "m", torch.float32)


CODE = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M", "AutoTokenizer": ["own.T", None]}


@pytest.mark.parametrize("load", [load_model, empty])
def test_code_in_a_model_folder_is_refused_and_nobody_is_asked_whether_it_may_run(
    model, tokenizer, tmp_path, load, monkeypatch
):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    save_policy(tmp_path / "m", model, tokenizer, {})
    (tmp_path / "m" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    changed(tmp_path / "m", model_type="none_of_transformers", auto_map=CODE)
    with pytest.raises(OSError, match="never run"):
        load(tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def test_the_token_that_ends_a_response_is_no_part_of_its_text_special_or_not(tokenizer):
    ends = [1, tokenizer.convert_tokens_to_ids("z")]  # the second as an added end of turn that is not special
    ids = tokenizer("abz")["input_ids"]
    assert response_text(ids, ends, tokenizer) == "ab"
    assert response_text(ids[:2], ends, tokenizer) == "ab"
    assert response_text([*tokenizer("za")["input_ids"], 1], ends, tokenizer) == "za"  # inside it stays
    assert response_text([], ends, tokenizer) == ""
