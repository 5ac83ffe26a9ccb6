"""How `ablations` reads a config of ours (dapo_lit/__init__.py hands it over)."""

from ablations.trainer import Configs
from dapo_lit.config.foreign import check_known_keys
from dapo_lit.config.identity import PACKING, SAMPLED_AT_ONCE, identity, with_defaults
from dapo_lit.config.shipped import config_folder

CONFIGS = Configs(
    identity=identity,
    complete=with_defaults,
    check=check_known_keys,
    sometimes=(*PACKING, *SAMPLED_AT_ONCE),
    calibrations=config_folder() / "regime",
)
