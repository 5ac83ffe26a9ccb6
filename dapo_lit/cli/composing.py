"""The config of a run in Python: `compose("+experiment=dapo", "budget.steps=20")`."""

from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from dapo_lit.cli.command import check_overrides, compose_run
from dapo_lit.config import Config, config_folder


def compose(*overrides: str) -> Config:
    """The checked config that `python -m dapo_lit.train` would run with these overrides.

    Raises:
        ConfigError: an unknown key or choice, or a value that does not fit.
    """
    check_overrides(overrides)
    return compose_run(composed_tree(overrides), Config)


def composed_tree(overrides: Sequence[str]) -> DictConfig:
    """Hydra's composed tree, interpolations not yet resolved."""
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        return hydra.compose("config", list(overrides))
