"""Turns plain containers into a checked config, or says what is wrong with them, with the key that was meant."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from dapo_lit.config.identity import kinds
from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Section, section_of
from dapo_lit.errors import nearest, suggestion

OTHER_TRAINERS = Path(__file__).with_name("other_trainers.yaml")


@cache
def words() -> dict[str, str]:
    """Keys of other trainers, with the key here."""
    trainers = yaml.safe_load(OTHER_TRAINERS.read_text(encoding="utf-8"))
    return {word: key for keys in trainers.values() for word, key in keys.items()}


def key_for(word: str, known: Collection[str]) -> str | None:
    """The key here for a key of another trainer, which may have more sections before it; None if `known` has none.

    >>> key_for("actor_rollout_ref.rollout.n", ["algorithm.samples_per_prompt"])
    'algorithm.samples_per_prompt'
    """
    parts = word.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts)))
    return next((words()[suffix] for suffix in suffixes if words().get(suffix) in known), None)


Schema = TypeVar("Schema", bound=Section)


def parse(tree: Mapping[str, Any]) -> Config:
    """Checks the composed config of a training run; see parse_as."""
    return parse_as(tree, Config)


def parse_as(tree: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """Checks a composed config (plain containers, interpolations resolved) against a command's schema."""
    try:
        return schema.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(fault, schema) for fault in error.errors())) from None


def _fault(fault: Any, schema: type[Section]) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    match fault["type"]:
        case "extra_forbidden":
            return unknown_key(path, schema)
        case "missing":
            return f"{key}: missing; every key of its config group must have a value"
        case "value_error":  # from `faults`, or a validator in this folder
            return f"{key + ': ' if key else ''}{fault['ctx']['error']}"
        case _:
            return f"{key}: {fault['msg']} (got {fault['input']!r})"


def known_keys(path: Sequence[str], schema: type[Section] = Config) -> list[str] | None:
    """The keys that the schema has below `path`; None below a free mapping."""
    for part in path:
        field = schema.model_fields.get(part)
        section = section_of(field.annotation) if field else None
        if section is None:
            return None
        schema = section
    return list(schema.model_fields)


def unknown_key(path: Sequence[str], schema: type[Section] = Config, rest: Sequence[str] = ()) -> str:
    """One line that names an unknown key, and the key that was meant: that of another trainer's word, one of this name
    in another section, or the nearest.

    rest: what follows the unknown part of the key.
    """
    siblings, every = known_keys(path[:-1], schema) or [], kinds(schema)
    word, form = path[-1], ".".join([*path[:-1], "{}"])
    own = [key for key in every if key.rpartition(".")[2] == word]
    if meant := key_for(".".join([*path, *rest]), every):
        return f"{'.'.join([*path, *rest])}: unknown key; here it is {meant} (docs/coming_from.md)"
    if own:
        hint = f"did you mean {' or '.join(own)}?"
    elif len(path) == 1 and word.startswith("exp") and not nearest(word, siblings):  # a group, not a key
        hint = "did you mean +experiment=NAME?"
    elif nearest(word, siblings):
        hint = suggestion(word, siblings, form)
    else:
        leaves = {key.rpartition(".")[2]: key for key in every}
        near = nearest(word, leaves)
        hint = f"did you mean {leaves[near]}?" if near else suggestion(word, siblings)
    return f"{'.'.join(path)}: unknown key; {hint}"
