"""Hydra's composed tree of a command's config."""

from collections.abc import Mapping, Sequence
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from dapo_lit.cli.overrides import choices_as_text, study_last
from dapo_lit.config import config_folder
from dapo_lit.config.shipped import SHARED, studies


def register_studies() -> None:
    """Makes every entry of conf/studies.yaml a choice of Hydra's group `study`."""
    store = ConfigStore.instance()
    for name, entry in studies().items():
        if name == SHARED:
            store.store(name="default", node=entry, group="study/shared", package="_global_")
            continue
        node = {"defaults": ["shared/default", "_self_"], **entry, "study": {"name": name, **entry["study"]}}
        store.store(name=name, node=node, group="study", package="_global_")


register_studies()


def composed_tree(overrides: Sequence[str], config_name: str = "config") -> DictConfig:
    """Interpolations are not yet resolved, and nothing is checked. A fork's tree is made of that of its run."""
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        tree = hydra.compose(config_name, study_last(choices_as_text(overrides)))
    if tree.get("fork") and tree.fork.steps:
        from dapo_lit.cli.fork import continued

        tree = OmegaConf.create(continued(resolved(tree), overrides))
    return tree


def with_literals(tree: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """A composed config with these values at these dotted keys, as they are: no grammar reads them."""
    changed = tree.copy()
    for key, value in values.items():
        # The schema reports unknown keys.
        OmegaConf.update(changed, key, value, merge=False, force_add=True)
    return changed


def resolved(tree: DictConfig) -> dict[str, Any]:
    """The values of a composed tree, interpolations resolved."""
    container = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
