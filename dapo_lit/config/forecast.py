"""The config of `python -m dapo_lit.plan`: that of a run, the hardware, and what a rollout step is expected to be."""

from pydantic import PositiveFloat, PositiveInt

from dapo_lit.config.run import Config
from dapo_lit.config.sections import Count, Fraction, Section


class Hardware(Section):
    """One GPU."""

    name: str
    memory_gb: PositiveFloat
    tflops: PositiveFloat
    """Dense bf16 arithmetic, 10^12 operations a second."""
    bandwidth_gb_s: PositiveFloat
    """Of its memory."""
    network_gb_s: PositiveFloat
    """To GPUs of other machines."""
    nvlink_gb_s: PositiveFloat
    """To GPUs of the same machine."""
    price_per_hour: PositiveFloat | None
    """In any currency; null: no cost is printed."""


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
    """Of a GPU's memory, the most that weights, cache and training state may take together during rollouts."""


class PlanConfig(Config):
    quick: bool
    """Simulate four and eight layers and extend to all."""
    runs: PositiveInt
    """Arms x seeds."""
    hardware: Hardware
    workload: Workload
