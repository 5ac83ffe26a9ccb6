"""The first row of the checks: what dtype and learning rate do to the weights. The config decides it, so that it is
printed before the seconds that torch and Lightning take.
"""

from dapo_lit.config import Config, ConfigError
from dapo_lit.preflight.table import Finding, run_checks

HIGH_RATE = 2e-5
"""Above it, full training of a pre-trained policy is likely to ruin it."""


def check_weights(config: Config) -> None:
    """Prints the first row of the table of checks.

    Raises ConfigError: the weights could not learn.
    """
    run_checks({"weights": lambda: check_dtype(config)})


def check_dtype(config: Config) -> Finding:
    """Refuses to train 16-bit weights themselves."""
    policy, narrow = config.policy, config.trainer.sharding.dtype
    if policy.dtype == "float32" or policy.lora is not None:
        trained = f"{policy.dtype} weights" if policy.lora is None else f"float32 adapters on {policy.dtype} weights"
        computed = f" computing in {narrow}" if narrow not in (None, policy.dtype) else ""
        return Finding(f"{trained}{computed}, learning rate {config.algorithm.optimizer.lr:g}", high_rate(config))
    raise ConfigError(
        f"policy.dtype={policy.dtype} without policy.lora: 16-bit weights round small updates away: a run with "
        "the usual learning rates learns nothing. Use float32 weights with 16-bit computation (policy.dtype=float32 "
        "trainer.sharding.dtype=bfloat16), or train adapters ('policy.lora={rank: 32, alpha: 32}')"
    )


def high_rate(config: Config) -> tuple[str, ...]:
    """A warning about a learning rate far above the usual one, as the default is for a pre-trained policy."""
    rate = config.algorithm.optimizer.lr
    if not config.policy.path or config.policy.lora is not None or rate <= HIGH_RATE:
        return ()
    return (
        f"algorithm.optimizer.lr={rate:g} is high for the weights of a pre-trained policy; 1e-6 to 1e-5 is usual, and "
        "the default suits the tiny policies",
    )
