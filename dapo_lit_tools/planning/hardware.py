"""The config of a plan: GPUs from data sheets, and the workload that is assumed."""

from typing import Annotated

from pydantic import BeforeValidator, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from ablations.errors import suggestion
from dapo_lit.config import Config, Section
from dapo_lit.config.commands import Answer
from dapo_lit.config.sections import Count, Fraction


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
