"""Says of a folder that holds no policy what it holds instead, by the names of its files and config.json.

A folder that is not named here may still be refused by what reads it: this is what people have, and not a proof.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.errors import DamagedError
from ablations.files.layout import RECORD
from ablations.texts import MB, json_tree, read_bytes

ORIGINAL = "take the model in float32, bfloat16 or float16 that it was made from"
QUANTISED = {
    "awq": "4 bits (AWQ)",
    "bitsandbytes": "4 or 8 bits (bitsandbytes)",
    "bnb": "4 or 8 bits (bitsandbytes)",
    "fp8": "8-bit floats (FP8)",
    "fbgemm_fp8": "8-bit floats (FP8)",
    "finegrained_fp8": "8-bit floats (FP8)",
    "gptq": "4 or 8 bits (GPTQ)",
    "mxfp4": "4-bit floats (MXFP4)",
}
"""`quant_method` of config.json, and what it means for the weights."""
OTHER_HEADS = {
    "ForMaskedLM": "an encoder that fills masks",
    "ForMultipleChoice": "a classifier",
    "ForQuestionAnswering": "a model that marks answers in a text",
    "ForSequenceClassification": "a classifier or reward model",
    "ForTokenClassification": "a classifier of tokens",
    "ForRewardModel": "a reward model",
    "Model": "a model without a head, as for embeddings",
}
"""Endings of `architectures` in config.json that predict no next token."""
LFS = b"version https://git-lfs.github.com/spec/"
LFS_BYTES = 1024
"""A pointer of Git LFS is smaller."""


def other_than_policy(folder: Path) -> str | None:
    """What is in the folder instead of a policy's weights, and what to do; None: nothing of a kind that is known.

    The files of the weights are looked for where there are some: of a model on the hub they are fetched last.
    """
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set[str]()
    config = _config(folder) if "config.json" in names else {}
    return _of_files(folder, names) or _of_config(folder, names, config)


def without_weights(folder: Path) -> str | None:
    """What is there of weights that are not all in the folder, and what to do; None: they are."""
    files = {file.name for file in folder.iterdir()}
    found = sorted(name for name in files if name.endswith(".safetensors"))
    for name in found:
        if (folder / name).stat().st_size < LFS_BYTES and read_bytes(folder / name).startswith(LFS):
            return f"{name} is a pointer of Git LFS and not the weights; `git lfs pull` in that folder fetches them"
    index = "model.safetensors.index.json"
    if index in files:
        tree = json_tree(read_bytes(folder / index, 64 * MB), folder / index)
        places = tree.get("weight_map") if isinstance(tree, Mapping) else None
        wanted = {*map(str, places.values())} if isinstance(places, Mapping) else set[str]()
        if lacking := sorted(wanted - files):
            return (
                f"{len(lacking)} of the {len(wanted)} files of weights that {index} names are not there, the first is "
                f"{lacking[0]}; the copy or download ended early, so repeat it"
            )
    elif not found:
        others = sorted(name for name in files if name.endswith((".bin", ".pt", ".pth", ".onnx", ".h5", ".msgpack")))
        if others:
            return (
                f"its weights are in {others[0]}, which is not safetensors, and a pickle is never read; take the "
                "safetensors of the model, or save it as such with `save_pretrained`"
            )
        return "it has a config.json and no weights (*.safetensors); copy them into it"
    return None


def _of_files(folder: Path, names: set[str]) -> str | None:
    has_weights = any(name.endswith((".safetensors", ".bin")) and not name.startswith("adapter_") for name in names)
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf and not has_weights:
        return f"{gguf[0]} is in GGUF, the format of llama.cpp, which is not trained here; {ORIGINAL}, in safetensors"
    if "adapter_config.json" in names and not has_weights:
        base = _config(folder, "adapter_config.json").get("base_model_name_or_path")
        named = f" of {base}" if isinstance(base, str) and base else ""
        return (
            f"it is an adapter{named} without its model; merge them first, with peft: `PeftModel.from_pretrained("
            "model, folder).merge_and_unload().save_pretrained(merged)`, and the tokenizer into the same folder"
        )
    if any(name.startswith("model_world_size_") for name in names):
        return (
            "it is a checkpoint of verl in parts; `python -m verl.model_merger merge --backend fsdp --local_dir FOLDER "
            "--target_dir MODEL` makes a model of it"
        )
    if RECORD in names and "config.json" not in names:
        return f"it is a run; `python -m dapo_lit.export {folder} output=MODEL` makes a model of its last checkpoint"
    return None


def _of_config(folder: Path, names: set[str], config: Mapping[str, Any]) -> str | None:
    quantised = config.get("quantization_config") or config.get("compression_config")
    if not quantised and isinstance(config.get("quantization"), Mapping):
        return f"its weights are quantised (MLX), and such weights are not supported; {ORIGINAL}"
    if quantised:
        method = str(quantised.get("quant_method", "")) if isinstance(quantised, Mapping) else ""
        how = QUANTISED.get(method.lower(), method or "quantization_config")
        return (
            f"its weights are quantised to {how}, and such weights are not supported; {ORIGINAL}. Where memory is "
            "short, train adapters: policy.dtype=bfloat16 'policy.lora={rank: 32, alpha: 32}'"
        )
    if "modules.json" in names and b"sentence_transformers" in read_bytes(folder / "modules.json"):
        return f"it is a model for embeddings (sentence-transformers), which predicts no next token; {_CAUSAL}"
    if config.get("is_encoder_decoder") is True:
        return f"it is an encoder-decoder ({config.get('model_type')}), which no loss here is for; {_CAUSAL}"
    heads = config.get("architectures")
    heads = [str(head) for head in heads] if isinstance(heads, list) else []
    kinds = [_other_head(head) for head in heads]
    if kinds and all(kinds):
        return f"it is {kinds[0]} ({heads[0]} in config.json), which predicts no next token; {_CAUSAL}"
    return None


_CAUSAL = "take a causal language model (docs/models.md)"


def _other_head(name: str) -> str | None:
    if name.endswith("LMHeadModel"):
        return None
    return next((kind for ending, kind in OTHER_HEADS.items() if name.endswith(ending)), None)


def _config(folder: Path, name: str = "config.json") -> Mapping[str, Any]:
    """The mapping in a file; empty if it is none, which what reads the model says better."""
    try:
        tree = json_tree(read_bytes(folder / name), folder / name)
    except DamagedError:
        return {}
    return tree if isinstance(tree, Mapping) else {}
