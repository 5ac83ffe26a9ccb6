"""The config of the evaluation command, composed as the command composes it."""

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse_as
from dapo_lit.config.evaluate import EvaluateConfig


def evaluation(*overrides: str) -> EvaluateConfig:
    return parse_as(resolved(composed_tree(overrides, "evaluate")), EvaluateConfig)
