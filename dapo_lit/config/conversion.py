"""Settings of TRL or verl as settings here, by the table other_trainers.yaml; texts only, nothing is imported or run.

The result says for each of their settings what became of it: a setting here, one to be made by hand, or no counterpart.
What a script leaves to its trainer's defaults is carried over too, as those differ from the defaults here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter, ValidationError

from dapo_lit.config.parsing import NONE, STARTS, other_trainers
from dapo_lit.config.run import Config
from dapo_lit.config.sections import Section, section_of
from dapo_lit.config.shipped import is_group

System = Literal["trl", "verl"]
ANY = "*"


@dataclass
class Conversion:
    """What became of the settings of a script; keys are as the script has them, in its order."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Choices of groups and dotted keys here."""
    notes: dict[str, str] = field(default_factory=dict)
    """Carried over, and not the same in every respect."""
    by_hand: dict[str, str] = field(default_factory=dict)
    """The key here, and what to give it."""
    without: dict[str, str] = field(default_factory=dict)
    """No counterpart, with the reason."""
    unknown: list[str] = field(default_factory=list)
    """Not in the table."""


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
        if key.startswith("*"):
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
    arithmetic = _trl_batches if system == "trl" else _verl_batches
    arithmetic(found, words)
    _complete(found)
    found.notes |= {key: note for key, note in start.get("notes", {}).items() if key not in found.settings}
    return found


@dataclass(frozen=True)
class Code:
    """A value that stands in a script as an expression, which is not evaluated."""

    text: str


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
    for end in range(len(parts), 0, -1):
        for start in range(end):
            word = ".".join(parts[start:end])
            if word in table and (parts[0] not in OF_ITS_OWN or any(own in word for own in OF_ITS_OWN[parts[0]])):
                entry = table[word]
                whole = entry.startswith(NONE) if isinstance(entry, str) else "by_hand" in entry
                if end == len(parts) or whole:
                    return word
    return None


OF_ITS_OWN = {"critic": ("critic",), "reward_model": ("reward", "overlong", "sandbox", "max_resp_len")}
"""Sections of verl's that repeat the words of its actor, and what their own ones contain."""


ENVIRONMENT = "turns.environment: "
WITH_ENVIRONMENT = {
    "turns.max_turns": "the script sets no limit, and an episode has one here",
    "turns.max_observation_tokens": "room for all answers of an episode; the script has no such limit",
    "turns.template": "what stands around an answer, as the chat format's tokens (docs/turns.md)",
}
"""What a script with tools leaves open."""


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
        if "note" in entry and _is_on(value):
            _put(found.notes, origin, entry["note"])
        return
    computed = isinstance(value, Code) and ANY not in _values(entry)
    settings = None if computed else _settings(entry, value, found.settings.get(key))
    why = entry.get("by_hand", f"the script has {value.text}" if isinstance(value, Code) else f"nothing is {value}")
    # A pair is whole only once both of its words were read.
    whole = {} if settings is None or "part" in entry else settings
    misfit = next((name for name, setting in whole.items() if not fits(name, setting)), None)
    if settings is None or misfit:
        reason = f"{misfit}: cannot be {value}" if misfit else f"{key}: {why}"
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
    if ("switched_off" in entry or "positive" in entry) and not _is_on(value):
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


@dataclass(frozen=True)
class Updates:
    """A number of updates, which is one of rollout steps once the updates in a step are known."""

    number: int


def _put(where: dict[str, str], keys: list[str], words: str) -> None:
    # Without keys: a user has not asked for what the trainer does by default.
    where |= dict.fromkeys(keys, words)


def _acts(entry: Mapping[str, Any], words: Mapping[str, Any]) -> bool:
    """Whether the settings that this one needs are on, and those that replace it absent."""

    def holds(need: str) -> bool:
        word, equals, wanted = need.partition("=")
        return _text(words.get(word)) in wanted.split("|") if equals else _is_on(words.get(word))

    replaced = "unless" in entry and all(map(holds, conditions(entry["unless"])))
    return not replaced and all(map(holds, conditions(entry.get("if", []))))


def conditions(listed: str | list[str]) -> list[str]:
    """Those of `if` or `unless`, of which one may stand without a list."""
    return [listed] if isinstance(listed, str) else listed


def _is_on(value: object) -> bool:
    return bool(value) and not (isinstance(value, (int, float)) and value <= 0)


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


def fits(key: str, value: object) -> bool:
    """Whether the schema takes this value at this key, or a group has this choice."""
    schema: type[Section] | None = Config
    *sections, last = key.split(".")
    if isinstance(value, Updates) or (not sections and is_group(key)):
        return True
    for name in sections:
        known = schema.model_fields.get(name) if schema else None
        schema = section_of(known.annotation) if known else None
    described = schema.model_fields.get(last) if schema else None
    if described is None:
        return False
    try:
        whole: Any = Annotated[described.annotation, described]
        TypeAdapter(whole).validate_python(value)
    except ValidationError:
        return False
    return True


BATCH = "per_device_train_batch_size"
"""The word under which the arithmetic of TRL's batches is reported."""


def _trl_batches(found: Conversion, words: Mapping[str, Any]) -> None:
    """TRL counts completions: those of an update on one device, and the updates for which it samples at once."""
    accumulated = words["gradient_accumulation_steps"]
    # torchrun counts the processes of a machine, accelerate those of all.
    machines = words.get("nnodes", words.get("num_machines", 1))
    devices, sampled_for = words.get("num_processes"), words.get("steps_per_generation", accumulated)
    if devices is None:
        on_each = words.get("nproc_per_node", 1)
        devices = on_each * machines if type(on_each) is type(machines) is int else on_each
    per_device, group, epochs = words[BATCH], words["num_generations"], words["num_iterations"]
    keys = "algorithm.num_prompts, algorithm.minibatch_prompts"
    numbers = [per_device, accumulated, group, epochs, sampled_for, words.get("generation_batch_size", 1)]
    if not all(type(number) is int and number > 0 for number in [*numbers, devices, machines]):
        found.by_hand[BATCH] = f"{keys}: the script computes its batch sizes, or the number of its devices"
        _count_updates(found, None)
        return
    update = per_device * accumulated * devices
    sampled = words.get("generation_batch_size", per_device * devices * sampled_for)
    # An update over several samplings is one larger step.
    sampled = sampled * update // gcd(sampled, update) if sampled < update else sampled
    if update % group or sampled % update:
        found.by_hand[BATCH] = (
            f"{keys}: an update has {update} completions there, of {sampled} in groups of {group}; here whole groups"
        )
        _count_updates(found, None)
        return
    found.settings |= {"algorithm.num_prompts": sampled // group, "algorithm.minibatch_prompts": update // group}
    _put_devices(found, devices // machines, machines)
    updates = sampled // update * epochs
    found.notes[BATCH] = (
        f"an update has {update} completions ({_counted(update // group, 'prompt')} x {group}) on "
        f"{_counted(devices, 'device')}; a step has {_counted(updates, 'update')}"
    )
    _count_updates(found, updates)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _count_updates(found: Conversion, updates: int | None) -> None:
    """Turns numbers of updates into numbers of steps, rounded up."""
    for key, value in list(found.settings.items()):
        if isinstance(value, Updates):
            del found.settings[key]
            if updates is None:
                found.by_hand[key] = f"{key}: {value.number} updates there, rollout steps here"
            elif value.number >= 0:
                steps = -(-value.number // updates)
                found.settings[key] = steps
                if updates > 1:
                    found.notes[key] = f"{value.number} updates there are {_counted(steps, 'rollout step')} here"


def _verl_batches(found: Conversion, words: Mapping[str, Any]) -> None:
    """verl counts prompts as here, and generated batches where it filters groups."""
    nodes, devices = words.get("nnodes"), words.get("n_gpus_per_node")
    if type(nodes) is int and type(devices) is int:
        _put_devices(found, devices, nodes)
    else:
        found.by_hand["nnodes"] = "trainer.num_nodes, trainer.devices: the script computes them"
    batches, size, sampled = words.get("max_num_gen_batches"), words["train_batch_size"], words.get("gen_batch_size")
    if not _is_on(words.get("filter_groups.enable")):
        return
    if type(batches) is int and type(size) is int and min(batches, size) > 0:
        generated = batches * (sampled if type(sampled) is int else size)
        found.settings |= {f"{SAMPLING}.max_rounds": -(-generated // size), f"{SAMPLING}.on_exhausted": "error"}
    else:
        # 0, verl's default, is no limit.
        reason = "a step has a limit here; the script sets none, or computes it"
        found.by_hand["max_num_gen_batches"] = f"{SAMPLING}.max_rounds: {reason}"


SAMPLING = "algorithm.dynamic_sampling"


def _put_devices(found: Conversion, devices: int, machines: int) -> None:
    if found.settings.get("trainer") == "cpu":
        return
    if devices * machines == 1:
        found.settings["trainer"] = "gpu"
        return
    found.settings |= {"trainer": "fsdp", "trainer.devices": devices}
    if machines > 1:
        found.settings["trainer.num_nodes"] = machines


def _complete(found: Conversion) -> None:
    """Whole pairs and mappings, and the two places that a run cannot do without."""
    settings = found.settings
    high = "algorithm.clip.high"
    # Equal bounds are no clip-higher.
    if high in settings and settings[high] == settings.get("algorithm.clip.low"):
        del settings[high]
        settings["algorithm.techniques.clip_higher"] = False
    for key, value in list(settings.items()):
        if isinstance(value, list) and None in value:
            found.by_hand[key] = f"{key}: both of a pair"
            del settings[key]
    if any(words.startswith(ENVIRONMENT) for words in found.by_hand.values()):
        found.by_hand |= {key: words for key, words in WITH_ENVIRONMENT.items() if key not in settings}
    for section in WHOLE:
        start = f"{section}."
        whole = {key.removeprefix(start): settings.pop(key) for key in [*settings] if key.startswith(start)}
        if whole and fits(section, whole):
            settings[section] = whole
        elif whole:
            found.by_hand[section] = f"{section}: all of it; the script says {', '.join(whole)}"
    for key, value in settings.items():
        if isinstance(value, str) and value.startswith("~/"):
            # Which a shell fills in only at the start of a word.
            settings[key] = f"$HOME/{value.removeprefix('~/')}"
    for key in ("policy.path", "task.path"):
        settings.setdefault(key, WANTED[key])


WHOLE = ("algorithm.critic", "algorithm.loss_options", "policy.lora")
"""Mappings that are null or empty here unless a command gives them as a whole."""


WANTED = {"policy.path": "MODEL", "task.path": "PROBLEMS"}
"""What stands in a command for a place that the script did not say."""
