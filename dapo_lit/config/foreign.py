"""A config from elsewhere, of a run folder or of packed cells, as a checked Config; every reader takes this way.

Such a config is data (SECURITY.md). It is never written as overrides, because Hydra's grammar adds keys (`++`), removes
them and chooses files. Its values stay literals: keys of the schema, of the schema's types, and no text that OmegaConf
would fill in. Names, places, loggers and callbacks are not taken at all.
"""

import json
from collections.abc import Container, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ablations.border import fault_in_words
from ablations.errors import DamagedError, one_line
from ablations.files.manifest import RESTORE
from ablations.trainer import flatten
from dapo_lit.config.identity import kind_of, put, schema_key, with_defaults
from dapo_lit.config.parsing import FILLED_IN, parse
from dapo_lit.config.run import Config
from dapo_lit.config.sections import BOOKKEEPING, ConfigError
from dapo_lit.config.shipped import default_run
from dapo_lit.imports import named_code


def foreign_config(tree: object, place: object, given: Container[str] | None = frozenset()) -> Config:
    """The config that was found at `place`; study, regime, runs_dir, resume, logger, callbacks, ... are as shipped.

    given: dotted paths of code that the user named; None: all, for a place that the user trusts and for a config that
    is only compared.

    Raises ConfigError: a key that the schema does not have, a value of another type, an interpolation, or code that was
    not given. One line with the place and the key.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{place}: its config is not a mapping of keys to values")
    taken = {str(key): value for key, value in tree.items() if kind_of(str(key)) is not BOOKKEEPING}
    for key, text in _texts(taken):
        if any(mark in text for mark in FILLED_IN):
            raise ConfigError(f"{place}: its config has {text!r} at {key}; values of another config must be filled in")
    for key, value in flatten(taken).items():
        if given is not None and any(code not in given for code in named_code(key, value)):
            raise ConfigError(
                f"{place} names code, {key}={value}, and a config from elsewhere is data: read that code, and name it "
                "on the command line to run it (replay also takes trust=true)"
            )
    try:
        return parse(with_defaults(taken) | {"study": None})
    except ConfigError as error:
        raise ConfigError(f"{place}: its config does not fit this version of the schema: {error}") from None


def check_known_keys(tree: Mapping[str, Any], place: object) -> None:
    """Refuses a config whose keys of this version's schema have values of other types; readers take them as they are.

    Keys that the schema lacks stay, as other versions wrote them. Raises DamagedError: one line with place and key.
    """
    try:
        # as JSON, where pydantic's strict mode takes a list for a tuple; without it "8" would pass for 8
        Config.model_validate_json(json.dumps(with_defaults(tree), default=str), strict=True)
    except ValidationError as error:
        wrong = [fault for fault in error.errors() if fault["type"] not in OF_OTHER_VERSIONS]
        if wrong:
            raise DamagedError(f"{place}: {one_line(map(fault_in_words, wrong))}; {RESTORE}") from None


OF_OTHER_VERSIONS = ("missing", "extra_forbidden", "value_error")
"""Faults of a config that may be another version's: its keys, and which values go together."""


def config_without_code(tree: object, place: object) -> Config:
    """`foreign_config` for readers that have no use for code: where it names some, the shipped value."""
    found = foreign_config(tree, place, given=None).model_dump(mode="json")
    shipped = flatten(default_run())
    for key in {schema_key(key) for key, value in flatten(found).items() if named_code(key, value)}:
        put(found, key, shipped[key])
    return parse(found)


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a config, names of keys too, with the key at which it is."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield key or "its top", str(name)
            yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner, key)
