"""From plain containers to a checked config, and the messages where one does not fit."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Section

Schema = TypeVar("Schema", bound=Section)


def parse(tree: Mapping[str, Any]) -> Config:
    """Checks the composed config of a training run; see parse_as."""
    return parse_as(tree, Config)


def parse_as(tree: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """Checks a composed config (plain containers, interpolations resolved) against the schema of a command.

    Raises:
        ConfigError: every fault in one message, a line each, with the key and, if unknown, the nearest known one.
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
    """Names of the keys below `path` in the schema, None where the schema leaves them open (a free mapping)."""
    section: Any = schema
    for part in path:
        field = section.model_fields.get(part)
        candidates = [field.annotation, *get_args(field.annotation)] if field else []
        sections = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Section)]
        if not sections:
            return None
        section = sections[0]
    return list(section.model_fields)


def unknown_key(path: Sequence[str], schema: type[Section] = Config) -> str:
    """One line that names an unknown key and the nearest known ones."""
    siblings = known_keys(path[:-1], schema) or []
    near = difflib.get_close_matches(path[-1], siblings, n=1, cutoff=0.6)
    hint = f"did you mean {'.'.join([*path[:-1], near[0]])}?" if near else f"known here: {', '.join(siblings)}"
    return f"{'.'.join(path)}: unknown key; {hint}"
