"""Turns plain containers into a checked config, or says what is wrong with them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Section, section_of
from dapo_lit.errors import suggestion

Schema = TypeVar("Schema", bound=Section)


def parse(tree: Mapping[str, Any]) -> Config:
    """Checks the composed config of a training run; see parse_as."""
    return parse_as(tree, Config)


def parse_as(tree: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """Checks a composed config (plain containers, interpolations resolved) against a command's schema.

    Raises:
        ConfigError: one line per fault, with the key and, if it is unknown, the nearest known one.
    """
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
        case "value_error":
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


def unknown_key(path: Sequence[str], schema: type[Section] = Config) -> str:
    """One line that names an unknown key and the nearest known ones."""
    siblings = known_keys(path[:-1], schema) or []
    hint = suggestion(path[-1], siblings, ".".join([*path[:-1], "{}"]))
    if len(path) == 1 and "did you mean" not in hint and path[0].startswith("exp"):  # a group, which is no key
        hint = "did you mean +experiment=NAME?"
    return f"{'.'.join(path)}: unknown key; {hint}"
