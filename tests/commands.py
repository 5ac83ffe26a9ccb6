"""The commands for evaluation and export, as tests call them in their own process."""

from pathlib import Path

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse_as
from dapo_lit.config.commands import EvaluateConfig, ExportConfig
from dapo_lit.export import export


def evaluation(*overrides: str) -> EvaluateConfig:
    """The config of an evaluation, composed as the command composes it."""
    return parse_as(resolved(composed_tree(overrides, "evaluate")), EvaluateConfig)


def export_to(output: Path, ckpt: Path) -> None:
    export(ExportConfig(ckpt=str(ckpt), output=str(output), license=None), [])
