"""The study that a regime's own section defines: its calibration."""

from dapo_lit.config import Config, ConfigError
from dapo_lit.study.arm_names import read_arm
from dapo_lit.study.compare.calibration import PLACEBO
from dapo_lit.study.designs import Design

CALIBRATE = "calibrate"


def regime_design(config: Config) -> Design:
    """The arms of a calibration: reference, placebo and every dose.

    Raises:
        ConfigError: no regime was chosen, or it names something that is no arm.
    """
    study, regime = config.study, config.regime
    assert study is not None
    if regime is None:
        raise ConfigError(f"+study={study.name} belongs to a regime; add +regime=NAME (conf/regime/)")
    doses = (dose for control in regime.techniques.values() for dose in control.doses)
    names = [regime.reference, regime.reference + PLACEBO, *doses]
    try:
        arms = tuple(read_arm(name) for name in dict.fromkeys(names))
    except ValueError as error:
        raise ConfigError(f"regime {regime.name}: {error}") from None
    return Design(study.name, regime.reference, arms)
