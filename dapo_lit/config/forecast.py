"""The config of `python -m dapo_lit.plan`: a run's config, the hardware and the expected workload of a step."""

from pydantic import PositiveFloat, PositiveInt

from dapo_lit.config.run import Config
from dapo_lit.config.sections import Count, Fraction, Section


class Hardware(Section):
    """One GPU."""

    name: str
    memory_gb: PositiveFloat
    tflops: PositiveFloat
    """Dense bf16 operations, 10^12 per second."""
    bandwidth_gb_s: PositiveFloat
    """Bandwidth of its memory."""
    network_gb_s: PositiveFloat
    """Bandwidth to GPUs of other machines."""
    nvlink_gb_s: PositiveFloat
    """Bandwidth to GPUs of the same machine."""
    price_per_hour: PositiveFloat | None
    """In any currency; null: print no cost."""


class Workload(Section):
    prompt_tokens: Count
    mean_response_tokens: PositiveFloat
    length_spread: PositiveFloat
    """Standard deviation of the logarithm of the length."""
    keep_frac: Fraction
    """Share of groups that dynamic sampling keeps."""
    engine_tensor_parallel: PositiveInt
    """GPUs that one inference engine spans."""
    engine_memory_frac: Fraction
    """Share of a GPU's memory that weights, cache and training state may use during rollouts."""


class PlanConfig(Config):
    quick: bool
    """Simulate four and five layers and extrapolate to all."""
    runs: PositiveInt
    """Arms x seeds."""
    hardware: Hardware
    workload: Workload
