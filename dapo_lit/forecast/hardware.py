"""The config of a plan: GPUs from data sheets, and the workload that is assumed."""

from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ablations.errors import suggestion
from dapo_lit.config import Config, ConfigError, Section
from dapo_lit.config.commands import Answer
from dapo_lit.config.sections import Count, Fraction, Policy


@dataclass(frozen=True)
class Hardware:
    """One GPU, from the maker's data sheet."""

    name: str
    memory_gb: PositiveFloat
    tflops: PositiveFloat
    """Dense bf16 operations, 10^12 per second."""
    bandwidth_gb_s: PositiveFloat
    """Bandwidth of its memory."""
    network_gb_s: PositiveFloat
    """Bandwidth to GPUs of other machines: one 400 or 200 Gbit/s port a GPU."""
    nvlink_gb_s: PositiveFloat
    """Bandwidth to GPUs of the same machine."""


GPUS = {
    "a100": Hardware("A100 SXM 80 GB", 80.0, 312.0, 2039.0, 25.0, 300.0),
    "a800": Hardware("A800 SXM 80 GB", 80.0, 312.0, 2039.0, 25.0, 200.0),
    "h20": Hardware("H20", 96.0, 148.0, 4000.0, 50.0, 450.0),
    "h100": Hardware("H100 SXM", 80.0, 989.0, 3350.0, 50.0, 400.0),
    "h200": Hardware("H200 SXM", 141.0, 989.0, 4800.0, 50.0, 400.0),
    "h800": Hardware("H800 SXM", 80.0, 989.0, 3350.0, 50.0, 200.0),
    "cpu": Hardware("two CPU cores", 16.0, 0.1, 20.0, 1.0, 10.0),  # rough, and of use for tiny policies only
}


QWEN2_5 = {
    "0.5B": (24, 896, 4864, 14, 2, 151936, True), "1.5B": (28, 1536, 8960, 12, 2, 151936, True),
    "7B": (28, 3584, 18944, 28, 4, 152064, False), "32B": (64, 5120, 27648, 40, 8, 152064, False),
}  # fmt: skip
"""Sizes of Qwen2.5 from its config files, so that the shipped experiments are planned without a network."""


def qwen2_5(size: str) -> dict[str, Any]:
    """The model configuration of a size in QWEN2_5."""
    layers, hidden, mlp, heads, key_heads, vocabulary, tied = QWEN2_5[size]
    return {
        "model_type": "qwen2", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "vocab_size": vocabulary,
        "tie_word_embeddings": tied, "max_position_embeddings": 32768,
    }  # fmt: skip


def architecture(policy: Policy) -> dict[str, Any]:
    """The policy's model configuration: of its config, of Qwen2.5, or what its folder or the hub says."""
    if policy.architecture is not None:
        return policy.architecture
    known = str(policy.path).removeprefix("Qwen/Qwen2.5-")
    if known in QWEN2_5:
        return qwen2_5(known)
    from transformers import AutoConfig

    try:
        return dict(AutoConfig.from_pretrained(str(policy.path)).get_text_config().to_diff_dict())
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path={policy.path}: no model configuration there ({error})") from None


def known_gpu(given: object) -> object:
    """The GPU of a name; anything but a name is left to the schema."""
    if not isinstance(given, str):
        return given
    if given not in GPUS:
        raise ValueError(f"there is no such hardware; {suggestion(given, GPUS, 'hardware={}')}")
    return GPUS[given]


class Workload(Section):
    prompt_tokens: Count
    mean_response_tokens: PositiveFloat
    length_spread: PositiveFloat
    """Standard deviation of the logarithm of the length."""
    keep_frac: Fraction
    """Share of groups that dynamic sampling keeps."""


class PlanConfig(Config):
    quick: bool
    """Simulate four and five layers and extrapolate to all."""
    runs: PositiveInt
    """Arms x seeds."""
    hardware: Annotated[Hardware, BeforeValidator(known_gpu, json_schema_input_type=str | Hardware)]
    """A name of the table above, or a mapping with the same values."""
    price_per_hour: PositiveFloat | None
    """Price of one GPU in any currency; null: print no cost."""
    workload: Workload
    answer: Answer
    """What is printed; `--json` is short for answer=json."""
