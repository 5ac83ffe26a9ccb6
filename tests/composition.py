"""Config trees as Hydra composes them, where many tests choose the same groups and other values."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.config.shipped import is_group


def tree_of(overrides: Sequence[str], config_name: str = "config") -> DictConfig:
    """What `composed_tree` gives. It takes a quarter of a second, nearly all of it for the groups: they are kept."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = [override for override in parsed if sets_a_value(override)]
    tree = deepcopy(groups_of(tuple(str(o.input_line) for o in parsed if o not in values), config_name))
    try:
        for override in values:  # as Hydra does it
            OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
    except OmegaConfBaseException:  # which Hydra says in other words
        return composed_tree(overrides, config_name)
    return tree


groups_of = cache(composed_tree)


def sets_a_value(override: Override) -> bool:
    """Whether it is `key=value`: no choice of a group, nothing added or deleted, no sweep."""
    key = override.key_or_group
    of_group = is_group(key) or key.startswith("hydra")
    return override.type is OverrideType.CHANGE and not override.is_sweep_override() and not of_group
