"""Hydra's composed tree of a run's config."""

from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from dapo_lit.config import config_folder


def composed_tree(overrides: Sequence[str]) -> DictConfig:
    """Interpolations are not yet resolved, and nothing is checked."""
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        return hydra.compose("config", list(overrides))
