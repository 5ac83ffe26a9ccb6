"""Folders that people have and that hold no policy: one line says what each is and what to do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dapo_lit.model_worker import ask
from dapo_lit.policy.folders import other_than_policy, without_weights
from dapo_lit.policy.load import load_model
from dapo_lit.rewards.work import Reading

CAUSAL = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 34\n"


def folder_of(place: Path, files: dict[str, object]) -> Path:
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return place


def quantised(method: str, **more: object) -> dict[str, object]:
    return {"config.json": CAUSAL | {"quantization_config": {"quant_method": method, **more}}}


def of(architecture: str, **more: object) -> dict[str, object]:
    return {"config.json": CAUSAL | {"architectures": [architecture], **more}}


OTHERS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "gguf": ({"model-Q4_K_M.gguf": b"GGUF"}, ("llama.cpp", "made from")),
    "adapter": ({"adapter_config.json": {"base_model_name_or_path": "Qwen/Qwen2.5-7B"}}, ("Qwen2.5-7B", "merge")),
    "awq": (quantised("awq", bits=4), ("AWQ", "not supported", "policy.lora")),
    "gptq": (quantised("gptq", bits=4), ("GPTQ", "not supported")),
    "bitsandbytes": (quantised("bitsandbytes", load_in_4bit=True), ("4 or 8 bits", "not supported")),
    "fp8": (quantised("fp8"), ("FP8", "not supported")),
    "mxfp4": (quantised("mxfp4"), ("MXFP4", "not supported")),
    "an unknown method": (quantised("new-method"), ("new-method", "not supported")),
    "mlx": ({"config.json": CAUSAL | {"quantization": {"bits": 4}}}, ("MLX", "not supported")),
    "an encoder": (of("BertForMaskedLM"), ("BertForMaskedLM", "docs/models.md")),
    "a reward model": (of("Qwen2ForSequenceClassification"), ("reward model", "docs/models.md")),
    "embeddings": (of("Qwen2Model"), ("without a head", "docs/models.md")),
    "t5": (of("T5ForConditionalGeneration", is_encoder_decoder=True), ("encoder-decoder", "docs/models.md")),
    "sentences": (
        {"config.json": CAUSAL, "modules.json": [{"type": "sentence_transformers.models.Transformer"}]},
        ("embeddings", "docs/models.md"),
    ),
    "verl": ({"model_world_size_8_rank_0.pt": b""}, ("verl", "model_merger")),
    "a run": ({"run.json": {}}, ("dapo_lit.export",)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_folder_of_another_kind_says_what_it_is_and_what_to_do(tmp_path, kind):
    files, words = OTHERS[kind]
    folder = folder_of(tmp_path / "m", files)
    with pytest.raises(OSError, match=r"policy\.path=") as refused:
        load_model(folder)
    assert all(word in str(refused.value) for word in words)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.safetensors": POINTER}, ("git lfs pull",)),
        ({"model.safetensors.index.json": INDEX, "model-00001-of-00002.safetensors": b"1"}, ("1 of the 2", "00002-of")),
        ({"pytorch_model.bin": b""}, ("pickle", "save_pretrained")),
        ({}, ("no weights",)),
    ],
)
def test_weights_that_are_not_all_there_are_named(tmp_path, files, words):
    folder = folder_of(tmp_path / "m", {"config.json": CAUSAL, **files})
    with pytest.raises(OSError, match=r"policy\.path=") as refused:
        load_model(folder)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "GPT2LMHeadModel", "Gemma3ForConditionalGeneration"])
def test_a_causal_model_of_any_name_passes(tmp_path, architecture):
    files = {**of(architecture), "adapter_config.json": {}, "x.gguf": b"", "model.safetensors": b"1" * 2000}
    folder = folder_of(tmp_path / "m", files)
    assert other_than_policy(folder) is None
    assert without_weights(folder) is None


def test_weights_of_fewer_than_16_bits_are_found_by_their_headers(tmp_path):
    folder = folder_of(tmp_path / "m", {"config.json": CAUSAL})
    save_file({"a.weight": torch.zeros(4, dtype=torch.float8_e4m3fn)}, folder / "model.safetensors")
    assert "F8_E4M3" in ask(Reading(str(folder)), 60.0).result
