"""The typed schema of every config group, with the checks that need more than one field.

Values live in `conf/` only: no field here has a default, so the YAML files show everything that a run uses. `parse`
turns Hydra's composed tree into a `Config`, or raises `ConfigError` with one line that names the keys and says what to
do.
"""

import dapo_lit.config.shipped  # noqa: F401  registers the resolver base_of
from dapo_lit.config.algorithm import Algorithm, Optimizer
from dapo_lit.config.parsing import is_free, known_keys, parse, parse_as, unknown_key
from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Section
from dapo_lit.config.shipped import config_folder

__all__ = [
    "Algorithm",
    "Config",
    "ConfigError",
    "Optimizer",
    "Section",
    "config_folder",
    "is_free",
    "known_keys",
    "parse",
    "parse_as",
    "unknown_key",
]
