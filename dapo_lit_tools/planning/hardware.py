"""The config of a plan: the GPU, and the workload that is assumed."""

from pydantic import PositiveFloat, PositiveInt

from dapo_lit.config import Config, Section
from dapo_lit.config.commands import Answer
from dapo_lit.config.sections import Count, Fraction
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
    days: PositiveFloat | None
    """A run is to take no longer: how many machines does that need? null: not asked."""
    workload: Workload
    answer: Answer
    """What is printed; `--json` is short for answer=json."""
