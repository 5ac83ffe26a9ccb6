"""How a command starts: overrides checked before Hydra sees them, the composed config parsed, faults in one message.

A user's mistake (config, data, model) ends with exit code 2 and no traceback; everything else keeps its traceback. In a
multirun a failed run does not stop the others, and the exit code says that one failed.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from dapo_lit.config import Config, ConfigError, known_keys, parse, unknown_key

USER_ERRORS = (ConfigError, ValueError, FileNotFoundError, PermissionError)


def config_folder() -> Path:
    """`conf/`: inside an installed package, else at the top of the checkout."""
    installed = Path(__file__).parent / "conf"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "conf"


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuses an override of a key that is not in the schema, with the nearest one that is.

    Raises:
        ConfigError: a line for each unknown key.
    """
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    faults = []
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        path = key.split(".")
        group = (config_folder() / key).is_dir()
        if group or override.is_add() or path[0] == "hydra":
            continue
        for depth in range(len(path)):
            siblings = known_keys(path[:depth])
            if siblings is None:
                break
            if path[depth] not in siblings:
                faults.append(unknown_key(path[: depth + 1]))
                break
    if faults:
        raise ConfigError("\n".join(faults))
