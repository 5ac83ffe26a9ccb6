"""The config of a plan: the GPU, and the workload that is assumed."""

from typing import Any

from pydantic import PositiveFloat, PositiveInt

from dapo_lit.config import Config, ConfigError, Section
from dapo_lit.config.commands import Answer
from dapo_lit.config.sections import Count, Fraction, Policy
from dapo_lit.config.shipped import choice, config_folder


class Hardware(Section):
    """One GPU, by the peaks of its data sheet (conf/hardware)."""

    name: str
    memory_gb: PositiveFloat
    tflops: PositiveFloat
    """Dense bf16 operations, 10^12 per second."""
    bandwidth_gb_s: PositiveFloat
    """Bandwidth of its memory."""
    network_gb_s: PositiveFloat
    """Bandwidth to GPUs of other machines."""
    nvlink_gb_s: PositiveFloat
    """Bandwidth to GPUs of the same machine, in one direction; where there is no NVLink, PCIe's."""


GPUS = {
    file.stem: Hardware(**choice("hardware", file.stem))
    for file in sorted((config_folder() / "hardware").glob("*.yaml"))
}
"""By the names of `hardware=NAME`, as they are in conf/hardware."""


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
    hardware: Hardware
    price_per_hour: PositiveFloat | None
    """Price of one GPU in any currency; null: print no cost."""
    workload: Workload
    answer: Answer
    """What is printed; `--json` is short for answer=json."""
