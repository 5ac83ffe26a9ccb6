"""The config of the evaluation command, composed as the command composes it."""

from composition import tree_of

from dapo_lit.cli.config_tree import resolved
from dapo_lit.config import parse_as
from dapo_lit.config.commands import EvaluateConfig


def evaluation(*overrides: str) -> EvaluateConfig:
    return parse_as(resolved(tree_of(overrides, "evaluate")), EvaluateConfig)
