"""The config of a run in Python: `compose("+experiment=dapo", "budget.steps=20")`."""

from dapo_lit.cli.command import compose_run
from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.cli.overrides import check_overrides
from dapo_lit.config import Config


def compose(*overrides: str) -> Config:
    """The checked config that `python -m dapo_lit.train` would run with these overrides."""
    check_overrides(overrides)
    return compose_run(composed_tree(overrides), Config)
