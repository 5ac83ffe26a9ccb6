"""The config of the evaluation command, composed as the command composes it."""

import hydra
from omegaconf import OmegaConf

from dapo_lit.config import config_folder, parse_as
from dapo_lit.config.evaluate import EvaluateConfig


def evaluation(*overrides: str) -> EvaluateConfig:
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        tree = OmegaConf.to_container(hydra.compose("evaluate", list(overrides)), resolve=True)
    assert isinstance(tree, dict)
    return parse_as({str(key): value for key, value in tree.items()}, EvaluateConfig)
