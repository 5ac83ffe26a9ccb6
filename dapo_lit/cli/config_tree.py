"""Hydra's composed tree of a command's config; what Hydra and OmegaConf refuse, as ConfigError."""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablations.errors import one_line
from dapo_lit.cli.config_files import check_expansion
from dapo_lit.cli.overrides import (
    INSTEAD,
    WITH_ARGUMENTS,
    choices_as_text,
    of_hydra,
    parsed,
    secret_of,
    study_last,
)
from dapo_lit.config import ConfigError, Section, config_folder, is_free, parse_as
from dapo_lit.config.parsing import Schema, typed_faults
from dapo_lit.config.sections import meanings, section_of
from dapo_lit.config.shipped import is_group, own_folders


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
    arguments = study_last(choices_as_text(overrides))
    tree = _with_values(arguments, config_name) or _composed(arguments, config_name)
    for section in WITH_ARGUMENTS:
        given = tree.get(section)
        if given is not None and (key := secret_of(section, OmegaConf.to_container(given, resolve=False))):
            raise ConfigError(f"{key}: a secret in a file of settings is wherever that file is copied to; {INSTEAD}")
    if isinstance(fork := tree.get("fork"), DictConfig) and fork.get("steps"):
        from dapo_lit.cli.fork import continued

        check_expansion(plain(tree))
        tree = OmegaConf.create(continued(resolved(tree), overrides))
    return tree


def _composed(arguments: Sequence[str], config_name: str) -> DictConfig:
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        return hydra.compose(config_name, [*arguments])


def _with_values(arguments: Sequence[str], config_name: str) -> DictConfig | None:
    """The composed tree, where nothing but values of existing keys comes after the choices of groups.

    Hydra takes a quarter of a second for the groups and a command composes several configs, so a tree of groups is
    kept; values are set as Hydra sets them. None where it is better asked itself: it words the refusals, and files of
    one's own may change.
    """
    if own_folders(arguments):
        return None
    given = [parsed(argument) for argument in arguments]
    plain = [_sets_a_value(override) for override in given]
    # What adds or deletes a key may concern the values before it.
    last = max((k for k, o in enumerate(given) if not plain[k] and not is_group(o.key_or_group)), default=-1)
    groups = tuple(argument for k, argument in enumerate(arguments) if k <= last or not plain[k])
    files = tuple((file, file.stat().st_mtime_ns) for file in sorted(config_folder().rglob("*.yaml")))
    tree = pickle.loads(_of_groups(groups, config_name, files))
    with suppress(OmegaConfBaseException):
        for override in [o for k, o in enumerate(given) if k > last and plain[k]]:
            OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
        return tree
    return None


def _sets_a_value(override: Override) -> bool:
    """Whether it is `key=value`: no choice of a group, nothing added or deleted, no sweep."""
    is_choice = override.package is not None or is_group(override.key_or_group) or of_hydra(override)
    return override.type is OverrideType.CHANGE and not override.is_sweep_override() and not is_choice


@lru_cache(maxsize=16)
def _of_groups(groups: tuple[str, ...], config_name: str, files: tuple[tuple[Path, int], ...]) -> bytes:
    """The tree as bytes, from which a copy is made in a fifth of the time of a deep copy."""
    return pickle.dumps(_composed(groups, config_name))


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
