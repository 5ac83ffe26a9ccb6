"""Settings of TRL or verl as settings here, by the table other_trainers.yaml; texts only, nothing is imported or run.

The result says for each of their settings what became of it: a setting here, one to be made by hand, or no counterpart.
What a script leaves to its trainer's defaults is carried over too, as those differ from the defaults here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ablations.border import short
from dapo_lit.config.parsing import NONE, STARTS, other_trainers
from dapo_lit_tools.conversion.converted import (
    Conversion,
    Updates,
    complete,
    fits,
    is_on,
    trl_batches,
    verl_batches,
    verl_kl,
)

System = Literal["trl", "verl"]
ANY = "*"


def convert(system: System, given: Mapping[str, Any]) -> Conversion:
    """The settings here for those of a script.

    given: their dotted keys, or the names of arguments, with plain values. A value that a script computes is a `Code`;
    a key with a star before it is a place in the script whose settings could not be read.
    """
    table, start = other_trainers()[system], other_trainers()[STARTS][system]
    found = Conversion(settings=dict(start["here"]))
    words: dict[str, Any] = dict(start["own"])
    origins: dict[str, list[str]] = {}
    for key, value in given.items():
        if isinstance(value, Said):
            (found.notes if value.where == "notes" else found.by_hand)[key] = value.text
        elif key.startswith("*"):
            found.by_hand[key] = "the settings in it could not be read; write them out as arguments"
        elif (word := word_of(key, table)) is None:
            found.unknown.append(key)
        else:
            # Again at the end: a later word may take part in what an earlier one means.
            words.pop(word, None)
            # A null says nothing, unless the trainer has a default in its place or the table a meaning for it.
            if value is not None or word in start["own"] or NULL in _values(table[word]):
                words[word] = value
                origins.setdefault(word, []).append(key)
    for word, value in words.items():
        _carry(found, table[word], (word, origins.get(word, [])), value, words)
    arithmetic = trl_batches if system == "trl" else verl_batches
    arithmetic(found, words)
    if system == "verl":
        verl_kl(found, words)
    complete(found)
    found.notes |= {key: note for key, note in start.get("notes", {}).items() if key not in found.settings}
    return found


@dataclass(frozen=True)
class Code:
    """A value that stands in a script as an expression, which is not evaluated."""

    text: str


@dataclass(frozen=True)
class Said:
    """A remark on a place in a script instead of a value."""

    text: str
    where: Literal["by_hand", "notes"] = "by_hand"


def word_of(key: str, table: Mapping[str, Any]) -> str | None:
    """The word of the table for a dotted key: its longest ending that the table has, or a section that it has as a
    whole.

    >>> word_of("actor_rollout_ref.rollout.n", {"rollout.n": "", "n": ""}), word_of("trainer.own", {"n": ""})
    ('rollout.n', None)
    >>> word_of("rollout.multi_turn.format", {"multi_turn": "none: a response is one turn", "format": ""})
    'format'
    >>> word_of("rollout.multi_turn.tools", {"multi_turn": "none: a response is one turn"})
    'multi_turn'
    """
    parts = key.split(".")
    if len(parts) > MOST_PARTS:
        return None
    for end in range(len(parts), 0, -1):
        for start in range(end):
            word = ".".join(parts[start:end])
            if word in table and (parts[0] not in OF_ITS_OWN or any(own in word for own in OF_ITS_OWN[parts[0]])):
                entry = table[word]
                whole = entry.startswith(NONE) if isinstance(entry, str) else "by_hand" in entry
                if end == len(parts) or whole:
                    return word
    return None


LONGEST_SHOWN = 300
"""Characters of an expression that are shown."""
MOST_PARTS = 20
"""Of a dotted key; those of verl have up to seven."""
OF_ITS_OWN = {"critic": ("critic",), "reward_model": ("reward", "overlong", "sandbox", "max_resp_len")}
"""Sections of verl's that repeat the words of its actor, and what their own ones contain."""


def _carry(
    found: Conversion, entry: str | Mapping[str, Any], name: tuple[str, list[str]], value: Any, words: Mapping[str, Any]
) -> None:
    """Carries one setting over; name: its word, and its keys in the script, none for a default of the trainer's."""
    word, origin = name
    if isinstance(entry, str):
        if entry.startswith(NONE):
            _put(found.without, origin, entry.removeprefix(NONE))
            return
        entry = {"key": entry}
    key = entry["key"]
    if not _acts(entry, words):
        _put(found.without, origin, "does nothing in this script")
        return
    if value is None and "none_is" in entry:
        value = words.get(entry["none_is"])
    if value is None and NULL not in _values(entry):
        _put(found.by_hand, origin, f"{key}: the script has none, where its trainer has a default")
        return
    if entry.get("computed"):
        if "note" in entry and is_on(value):
            _put(found.notes, origin, entry["note"])
        return
    computed = isinstance(value, Code) and ANY not in _values(entry)
    settings = None if computed else _settings(entry, value, found.settings.get(key))
    why = entry.get(
        "by_hand",
        f"the script has {value.text[:LONGEST_SHOWN]}" if isinstance(value, Code) else f"nothing is {short(value)}",
    )
    # A pair is whole only once both of its words were read.
    whole = {} if settings is None or "part" in entry else settings
    misfit = next((name for name, setting in whole.items() if not fits(name, setting)), None)
    if settings is None or misfit:
        reason = f"{misfit}: cannot be {short(value)}" if misfit else f"{key}: {why}"
        _put(found.by_hand, origin or [f"{word}={value}, the default"], reason)
        return
    found.settings |= settings
    if "note" in entry:
        _put(found.notes, origin, entry["note"])


def _settings(entry: Mapping[str, Any], value: Any, before: Any) -> dict[str, Any] | None:
    """The settings here for a value of a word that acts; None where a user has to choose.

    before: what the key has by now, of which `value` may be a part.
    """
    key = entry["key"]
    if entry.get("dotted") and isinstance(value, str) and "." in value:
        return {key: value}
    if "values" in entry:
        return _by_values(entry["values"], value)
    if ("switched_off" in entry or "positive" in entry) and not is_on(value):
        return {key: entry["switched_off"]} if "switched_off" in entry else {}
    if "by_hand" in entry:
        return None
    if isinstance(part := entry.get("part"), str):
        return {f"{key}.{part}": value}
    if part is not None:
        return {key: _with_part(before, part, value)}
    if entry.get("unit") == "updates" and type(value) is int:
        # They become steps once their number in a step is known.
        value = Updates(value)
    return {key: value, **entry.get("with", {})}


def _put(where: dict[str, str], keys: list[str], words: str) -> None:
    # Without keys: a user has not asked for what the trainer does by default.
    where |= dict.fromkeys(keys, words)


def _acts(entry: Mapping[str, Any], words: Mapping[str, Any]) -> bool:
    """Whether the settings that this one needs are on, and those that replace it absent."""

    def holds(need: str) -> bool:
        word, equals, wanted = need.partition("=")
        return _text(words.get(word)) in wanted.split("|") if equals else is_on(words.get(word))

    replaced = "unless" in entry and all(map(holds, conditions(entry["unless"])))
    return not replaced and all(map(holds, conditions(entry.get("if", []))))


def conditions(listed: str | list[str]) -> list[str]:
    """Those of `if` or `unless`, of which one may stand without a list."""
    return [listed] if isinstance(listed, str) else listed


NULL = "none"
"""What a null is called among the values of the table."""


def _text(value: object) -> str:
    """A value as the table writes it."""
    return NULL if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _values(entry: str | Mapping[str, Any]) -> Mapping[str, Any]:
    values: Mapping[str, Any] = {} if isinstance(entry, str) else entry.get("values", {})
    return values


def _by_values(values: Mapping[str, Mapping[str, Any]], value: object) -> dict[str, Any] | None:
    """The settings for a value, for each one of a list; None where the table has none for it."""
    settings: dict[str, Any] = {}
    for one in value if isinstance(value, (list, tuple)) else [value]:
        meant = values.get(_text(one), values.get(ANY))
        if meant is None:
            return None
        settings |= meant
    return settings


def _with_part(pair: Any, place: int, value: object) -> list[Any]:
    whole = list(pair) if isinstance(pair, list) else [None, None]
    whole[place] = value
    return whole
