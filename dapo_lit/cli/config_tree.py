"""Hydra's composed tree of a command's config; what Hydra and OmegaConf refuse, as ConfigError."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablations.errors import one_line
from dapo_lit.cli.config_files import check_expansion
from dapo_lit.cli.overrides import INSTEAD, WITH_ARGUMENTS, choices_as_text, secret_of, study_last
from dapo_lit.config import ConfigError, Section, config_folder, is_free, parse_as
from dapo_lit.config.parsing import Schema, typed_faults
from dapo_lit.config.sections import meanings, section_of


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """Within it, what Hydra or OmegaConf refuses is a ConfigError."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(composition_fault(error)) from None


def composition_fault(error: Exception) -> str:
    """Hydra's message about an override, in one line."""
    if "'hydra/launcher/" in str(error):
        return "hydra/launcher: needs a library: pip install hydra-submitit-launcher hydra-joblib-launcher"
    # Hydra says to use a flag of the command line, which is not the only place where a config is composed.
    if several := re.match(r"Ambiguous value for argument '(.+)'\n", str(error)):
        return (
            f"{several[1]}: several values for one run; -m runs one after the other (in Python dapo_lit.api.multirun), "
            "and a text with a comma in it is put in quotes"
        )
    if twice := re.match(r"Multiple values for ([\w/]+)\.", str(error)):
        return f"{twice[1]}: chosen twice, and a run has one {twice[1]}; leave one of them out"
    if not_a_mapping := re.match(r"Error merging override ([\w.]+)=(.*)", str(error)):
        key, value = not_a_mapping.groups()
        return f"{key}={value}: {key} has keys of its own, which are set one by one: {key}.NAME=VALUE"
    # Hydra says which key but not what to do.
    absent = re.match(r"Could not override '([\w.]+)'", str(error))
    if absent is None:
        return " ".join(str(error).split())
    if absent[1].startswith("logger.wandb."):
        return f"{absent[1]}: needs logger=wandb; an argument of wandb.init without a key is +{absent[1]}=..."
    if is_free(absent[1]):
        return (
            f"{absent[1]}: has no such key yet; a plus adds one, +{absent[1]}=...; docs/tasks.md has options of tasks"
        )
    return (
        f"{absent[1]}: the composed config has no such key; docs/configuration.md has every key, docs/tasks.md options"
    )


@refusals_in_one_line()
def composed_tree(overrides: Sequence[str], config_name: str = "config") -> DictConfig:
    """Interpolations are not yet resolved, and nothing is checked. A fork's tree is made of that of its run."""
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        tree = hydra.compose(config_name, study_last(choices_as_text(overrides)))
    for section in WITH_ARGUMENTS:
        given = tree.get(section)
        if given is not None and (key := secret_of(section, OmegaConf.to_container(given, resolve=False))):
            raise ConfigError(f"{key}: a secret in a file of settings is wherever that file is copied to; {INSTEAD}")
    if isinstance(fork := tree.get("fork"), DictConfig) and fork.get("steps"):
        from dapo_lit.cli.fork import continued

        check_expansion(plain(tree))
        tree = OmegaConf.create(continued(resolved(tree), overrides))
    return tree


def with_literals(tree: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """A composed config with these values at these dotted keys, as they are: no grammar reads them."""
    changed = tree.copy()
    for key, value in values.items():
        # The schema reports unknown keys.
        OmegaConf.update(changed, key, value, merge=False, force_add=True)
    return changed


def config_of(tree: DictConfig, schema: type[Schema]) -> Schema:
    """The checked config of a composed tree.

    Raises ConfigError: a key has no value, or a wrong one. Where others are made of it by interpolation, it is named.
    """
    check_expansion(plain(tree))
    try:
        with refusals_in_one_line():
            missing = sorted(OmegaConf.missing_keys(tree))
        if missing:
            raise ConfigError(one_line(f"{key} is needed: {description(key, schema)}" for key in missing))
        return parse_as(resolved(tree), schema)
    except ConfigError:
        if faults := typed_faults(plain(tree), schema):
            raise ConfigError(one_line(faults)) from None
        raise


def description(key: str, schema: type[Section]) -> str:
    """The meaning of a key, in one line."""
    words: str | None = "a value in a composed file"
    for part in key.split("."):
        field = schema.model_fields.get(part)
        words = meanings(schema).get(part) if field else words
        schema = (section_of(field.annotation) if field else None) or schema
    return " ".join((words or "").split())


@refusals_in_one_line()
def resolved(tree: DictConfig) -> dict[str, Any]:
    """The values of a composed tree, interpolations resolved."""
    container = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def plain(tree: DictConfig) -> dict[str, Any]:
    """The values of a composed tree, interpolations as they were written."""
    container = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
