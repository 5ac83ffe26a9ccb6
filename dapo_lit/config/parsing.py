"""Turns plain containers into a checked config, or says what is wrong with them, with the key that was meant."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import ValidationError

from ablations.border import LARGEST_WHOLE, must_be, short
from ablations.errors import nearest, one_line
from ablations.texts import read_text, yaml_tree
from dapo_lit.config.identity import kinds
from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Section, as_written, section_of

OTHER_TRAINERS = Path(__file__).with_name("other_trainers.yaml")


@cache
def words() -> dict[str, str]:
    """Keys of other trainers, with the key here, or `none: ` and the reason why there is none."""
    found: dict[str, str] = {}
    for trainer, entries in other_trainers().items():
        if trainer != STARTS:
            # A mapping has more on how a value is carried over (conversion.py).
            found |= {word: entry if isinstance(entry, str) else entry["key"] for word, entry in entries.items()}
    return found


@cache
def other_trainers() -> dict[str, dict[str, Any]]:
    """The whole table: trainer -> word -> entry, and under STARTS what each does where a script is silent."""
    table = yaml_tree(read_text(OTHER_TRAINERS), OTHER_TRAINERS)
    assert isinstance(table, dict)
    return table


STARTS = "starts"


NONE = "none: "


def key_for(word: str, known: Collection[str]) -> str | None:
    """The key here for a key of another trainer, which may have more sections before it, or `none: ` and the reason;
    None if the word is no key of another trainer, or its key here is not among the known ones.

    >>> key_for("actor_rollout_ref.rollout.n", ["algorithm.samples_per_prompt"])
    'algorithm.samples_per_prompt'
    >>> key_for("trainer.val_before_train", [])
    'none: always'
    """
    parts = word.split(".")
    # By the end of the key: trainers prefix the same words with different sections.
    found = (words().get(".".join(parts[start:])) for start in range(len(parts)))
    return next((meant for meant in found if meant and (meant in known or meant.startswith(NONE))), None)


def near_key(word: str, known: Iterable[str]) -> str | None:
    """The known name that is spelled most alike and ends in the same word: `max_length` is no slip for `max_staleness`.

    >>> near_key("cache_token", ["cache_tokens"]), near_key("precision", ["direction"])
    ('cache_tokens', None)
    """
    names = list(known)
    while near := nearest(word, names):
        # The last word says what a key is; a near miss in the first is another key of the same kind.
        ends = [name.lower().rpartition("_")[2] for name in (word, near)]
        if slips(*ends) <= (1 if len(ends[0]) < LONG_WORD else 2):
            return near
        names.remove(near)
    return None


LONG_WORD = 6
"""Letters of a word in which two slips may happen."""


def slips(one: str, other: str) -> int:
    """The letters that are missing, too many, wrong or swapped with the next between two words.

    >>> slips("hgh", "high"), slips("sede", "seed"), slips("precision", "direction")
    (1, 1, 4)
    """
    # Three rows are enough for swapped neighbours (Damerau), and no library is loaded for it.
    before, last, now = [0] * (len(other) + 1), [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, now = last, now, [i] * (len(other) + 1)
        for j, wanted in enumerate(other, 1):
            now[j] = min(last[j] + 1, now[j - 1] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                now[j] = min(now[j], before[j - 2] + 1)
    return now[-1]


Schema = TypeVar("Schema", bound=Section)


def parse(tree: Mapping[str, Any]) -> Config:
    """Checks the composed config of a training run; see parse_as."""
    return parse_as(tree, Config)


def parse_as(tree: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """Checks a composed config (plain containers, interpolations resolved) against a command's schema."""
    try:
        return schema.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError(one_line(in_words(error.errors(include_url=False), tree, schema))) from None


def typed_faults(tree: Mapping[str, Any], schema: type[Section]) -> list[str]:
    """What is wrong with the values of a tree whose interpolations are not resolved, each by itself."""
    try:
        schema.model_validate(dict(tree))
    except ValidationError as error:
        own = [fault for fault in error.errors(include_url=False) if _is_own(fault)]
        return in_words(own, tree, schema)
    return []


FILLED_IN = ("${", "???")
"""What OmegaConf replaces in a text, or takes for a missing value."""


def _is_own(fault: Any) -> bool:
    """Whether a fault is one of its key alone: a value that was given, or none."""
    made = any(mark in str(fault["input"]) for mark in FILLED_IN)
    return fault["type"] == "missing" or (fault["type"] != "value_error" and not made)


def in_words(faults: Iterable[Any], tree: object, schema: type[Section]) -> list[str]:
    """One sentence for each key that pydantic finds at fault, with what it must be."""
    of_key: dict[str, list[Any]] = {}
    for fault in faults:
        # A value that may be of two types has a fault for each.
        of_key.setdefault(".".join(_place(fault, tree)), []).append(fault)
    return [_fault(key, found, schema) for key, found in of_key.items()]


def _place(fault: Any, tree: object) -> list[str]:
    """Where the value is that is at fault: pydantic adds the type that it tried."""
    place, inner = list[str](), tree
    for part in fault["loc"]:
        if isinstance(inner, Mapping) and (part in inner or fault["type"] == "missing"):
            inner = inner.get(part)
        elif isinstance(inner, (list, tuple)) and type(part) is int:
            inner = inner[part] if part < len(inner) else None
        else:
            break
        place.append(str(part))
    return place


def _fault(key: str, faults: Sequence[Any], schema: type[Section]) -> str:
    fault = faults[0]
    match fault["type"]:
        case "extra_forbidden":
            return unknown_key(key.split("."), schema)
        case "missing" if isinstance(fault["loc"][-1], str):
            return f"{key}: missing; every key of its config group must have a value"
        case "missing":
            return f"{key}: missing; its list must have more entries"
        case "value_error":  # from `faults`, or a validator in this folder
            return f"{key + ': ' if key else ''}{fault['ctx']['error']}"
        case "tuple_type":
            return f"{key}: a list is needed: '{key}=[{short(fault['input'])}]'"
        case "too_long":
            return f"{key}: it must have {fault['ctx']['max_length']} entries, not {fault['ctx']['actual_length']}"
        case _:
            must = " or ".join(dict.fromkeys(map(must_be, faults)))
            return f"{key}: it must be {must}, and it is {as_written(fault['input'])}{_remedy(key, fault)}"


def _remedy(key: str, fault: Any) -> str:
    """What to write instead, where the value is one of another type by its looks."""
    value, wanted = fault["input"], fault["type"]
    if wanted == "string_type" and isinstance(value, (bool, int, float)):
        return f"""; with quotes it is one: "{key}='{as_written(value)}'\""""
    if wanted == "int_type" and isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE:
        return f"; write {int(value)}"
    if wanted in ("int_type", "float_type", "bool_type") and isinstance(value, str) and LIKE_A_VALUE.fullmatch(value):
        return "; leave out the quotes"
    return ""


LIKE_A_VALUE = re.compile(r"[+-]?\d{1,20}(\.\d{0,20})?|true|false", re.IGNORECASE)
"""A text that a config would have for a number or a switch if it were not quoted."""


def known_keys(path: Sequence[str], schema: type[Section] = Config) -> list[str] | None:
    """The keys that the schema has below `path`; None below a free mapping."""
    for part in path:
        field = schema.model_fields.get(part)
        section = section_of(field.annotation) if field else None
        if section is None:
            return None
        schema = section
    return list(schema.model_fields)


def is_free(key: str, schema: type[Section] = Config) -> bool:
    """True for a mapping that may have any keys, and for a key of it.

    >>> is_free("algorithm.loss_options"), is_free("algorithm.loss_options.width"), is_free("algorithm.clip.low")
    (True, True, False)
    """
    for part in key.split("."):
        field = schema.model_fields.get(part)
        if field is None or get_origin(field.annotation) is dict:
            return field is not None
        section = section_of(field.annotation)
        if section is None:
            return False
        schema = section
    return False


def unknown_key(path: Sequence[str], schema: type[Section] = Config, rest: Sequence[str] = ()) -> str:
    """One line that names an unknown key, and the key that was meant: that of another trainer's word, one of this name
    in another section, or the nearest.

    rest: what follows the unknown part of the key.
    """
    siblings, every = known_keys(path[:-1], schema) or [], kinds(schema)
    word, form = path[-1], ".".join([*path[:-1], "{}"])
    own = [key for key in every if key.rpartition(".")[2] == word]
    whole = ".".join([*path, *rest])
    # First: someone who types verl's key means exactly that one.
    if meant := key_for(whole, every):
        counterpart = f"no counterpart: {meant.removeprefix(NONE)}" if meant.startswith(NONE) else f"here it is {meant}"
        return f"{whole}: unknown key; {counterpart} (docs/coming_from.md)"
    leaves = {key.rpartition(".")[2]: key for key in every}
    if own:
        hint = f"did you mean {' or '.join(own)}?"
    elif near := near_key(word, siblings):
        hint = f"did you mean {form.format(near)}?"
    elif longer := [name for name in siblings if word in name.split("_")]:  # budget.tokens of tokens_generated
        hint = f"did you mean {' or '.join(map(form.format, longer))}?"
    elif len(path) == 1 and word.startswith("exp"):  # a group, not a key
        hint = "did you mean +experiment=NAME?"
    elif near := near_key(word, leaves):
        hint = f"did you mean {leaves[near]}?"
    else:
        hint = f"known: {', '.join(siblings) or 'none'}"
    return f"{'.'.join(path)}: unknown key; {hint}"
