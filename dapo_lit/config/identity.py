"""The identity of an experiment: the kinds of config keys, the hash and the differences that count.

Works on config trees (nested mappings, as in a run's config.yaml). A key that a tree lacks, because its version did not
have it, is read as the shipped default.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from ablations.trainer import Tree, flatten
from dapo_lit.config.run import Config
from dapo_lit.config.sections import HORIZON, SCIENCE, Kind, Section, section_of
from dapo_lit.config.shipped import choice, default_run

PACKING = ("trainer.micro_batch_tokens", "trainer.shared_prompt", "trainer.devices", "trainer.num_nodes")
"""Execution keys that decide which tokens share a micro-batch."""
SAMPLED_AT_ONCE = ("rollout.max_batch_size", "trainer.devices", "trainer.num_nodes")
"""Execution keys that decide how many samples are under way."""


def put(tree: dict[str, Any], key: str, value: object) -> None:
    """Sets a dotted key of nested dictionaries."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree[section]
    tree[last] = value


@cache
def kinds(schema: type[Section] = Config, inherited: Kind = SCIENCE, prefix: str = "") -> dict[str, Kind]:
    """Every key of a schema with its kind, sections included."""
    found: dict[str, Kind] = {}
    for name, field in schema.model_fields.items():
        # A key without a tag is science: forgetting a tag makes a hash too strict, never too lax.
        kind = next((tag for tag in field.metadata if isinstance(tag, Kind)), inherited)
        found[prefix + name] = kind
        if section := section_of(field.annotation):
            found |= kinds(section, kind, f"{prefix}{name}.")
    return found


def uncounted() -> list[str]:
    """The keys without keys below them that are no part of an experiment."""
    known = kinds()
    ends = [key for key in known if not any(other.startswith(f"{key}.") for other in known)]
    return [key for key in ends if known[key] not in (SCIENCE, HORIZON)]


@cache
def schema_key(key: str) -> str:
    """The longest part of a dotted key that the schema has: `task.options` for `task.options.terms`."""
    known = kinds()
    while key not in known and "." in key:
        key = key.rpartition(".")[0]
    return key


def kind_of(key: str) -> Kind:
    """The kind of a dotted key; below a free mapping, that of the mapping; science where the schema has no such key."""
    # Unknown keys count, as nobody knows what they changed.
    return kinds().get(schema_key(key), SCIENCE)


@cache
def _sections(schema: type[Section]) -> list[tuple[str, type[Section] | None]]:
    """The keys of a section, each with the section below it."""
    return [(name, section_of(field.annotation)) for name, field in schema.model_fields.items()]


def with_defaults(tree: Tree) -> dict[str, Any]:
    """A run's config with the keys that its version did not have."""

    def fill(part: Tree, schema: type[Section], defaults: Tree) -> dict[str, Any]:
        filled = dict(part)
        for name, section in _sections(schema):
            if name not in part and name in defaults:
                # A key that an old version lacked had the value that is now the default; a new key ships with it.
                filled[name] = defaults[name]
            elif section and isinstance(part.get(name), Mapping):
                filled[name] = fill(part[name], section, defaults.get(name) or {})
        return filled

    return fill(tree, Config, {**default_run(), "study": choice("study", "shared/default")["study"]})


def identity(tree: Tree) -> dict[str, Any]:
    """The dotted keys that decide what a run learns and when it ends, with their values."""
    flat = flatten(with_defaults(tree))
    counted = {key for key in flat if kind_of(key) in (SCIENCE, HORIZON)}
    # The gradient depends on the packing.
    if flat.get("algorithm.token_level_denominator") == "microbatch":
        counted |= flat.keys() & set(PACKING)
    # Which groups are complete or half done at the end of a step depends on how many were sampled at once.
    if flat.get("algorithm.dynamic_sampling.carry_over", "none") != "none":
        counted |= flat.keys() & set(SAMPLED_AT_ONCE)
    return {key: flat[key] for key in sorted(counted)}


def config_hash(tree: Tree) -> str:
    """16 hexadecimal digits of the run's identity."""
    # Sorted, so that the order of a YAML file is no part of an experiment.
    return hashlib.sha256(json.dumps(identity(tree), sort_keys=True).encode()).hexdigest()[:16]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Keys whose values differ between two flat configs: {key: [before, after]}; None where a config lacks the key."""
    return {
        key: [before.get(key), after.get(key)]
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
