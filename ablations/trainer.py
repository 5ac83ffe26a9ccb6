"""What a trainer says about its own runs, so that they are read as it means them.

A trainer calls `hand_over` where it is imported, as dapo_lit/__init__.py does, and `register` (techniques.py) with the
techniques that it can switch. Logs of other trainers need neither: every setting of a config counts but those in
uncounted.json.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ablations.texts import json_tree, read_bytes

Tree = Mapping[str, Any]
"""A config as nested mappings."""


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """A nested config as dotted keys.

    >>> flatten({"algorithm": {"clip": {"low": 0.2}}})
    {'algorithm.clip.low': 0.2}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        # An empty mapping is a value: without keys below it, it would disappear from the hash.
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return flat


FILE = Path(__file__).with_name("uncounted.json")
"""Made by docs/site/made.py of the schema in dapo_lit/config: keys that name, place, watch or speed up a run."""


@cache
def uncounted() -> frozenset[str]:
    """Keys that are no part of an experiment where no trainer says which are."""
    return frozenset(json_tree(read_bytes(FILE), FILE))


def counted(tree: Tree) -> dict[str, Any]:
    """The dotted keys of a config without those in uncounted.json and what is below them."""
    flat = flatten(tree)
    return {key: flat[key] for key in sorted(flat) if not uncounted() & set(_prefixes(key))}


def _prefixes(key: str) -> Iterator[str]:
    """`a.b.c`, `a.b` and `a` of `a.b.c`."""
    while key:
        yield key
        key = key.rpartition(".")[0]


@dataclass(frozen=True)
class Configs:
    """How the config of a run is read."""

    identity: Callable[[Tree], dict[str, Any]] = counted
    """The dotted keys that decide what a run learns and when it ends, with their values."""
    complete: Callable[[Tree], dict[str, Any]] = dict
    """The config with the keys that its version did not have."""
    check: Callable[[Tree, object], None] | None = None
    """Raises DamagedError where the config at a place has values of other types than the trainer's; None: only what is
    read here is checked (files/record.py)."""
    sometimes: tuple[str, ...] = ()
    """Keys that are part of `identity` under some settings only."""
    calibrations: Path | None = None
    """The folder of the calibrations that come with the trainer's regimes."""


@dataclass(frozen=True)
class Remedies:
    """What a user of the trainer does about a finding, with the trainer's own settings: the end of a sentence, with the
    mark that joins it."""

    unequal_bases: str = ""
    """Two machines made other weights from one recipe of a base policy."""
    no_rollouts: str = ""
    no_tokens: str = ""
    """No step was replayed, so that nothing is known token by token."""
    seldom_measured: str = ""
    """The compared metric was not measured at every step."""


@dataclass(frozen=True)
class Trainer:
    """A trainer whose runs are read here."""

    command: tuple[str, ...] = ("ablations", "{}")
    """The words of a command before its arguments; {} is its name."""
    configs: Callable[[], Configs] = Configs
    """Called when the first config is read: a schema takes a quarter of a second to load, and logs have no config."""
    remedies: Remedies = Remedies()


_trainer = Trainer()


def hand_over(trainer: Trainer) -> None:
    """From here on, runs are read as this trainer means them."""
    global _trainer
    _trainer = trainer
    configs.cache_clear()


def command_words(name: str) -> list[str]:
    """What is typed to start a command, before its arguments."""
    return [word.format(name) for word in _trainer.command]


def remedies() -> Remedies:
    """What the trainer's users do about findings."""
    return _trainer.remedies


@cache
def configs() -> Configs:
    """How configs are read."""
    return _trainer.configs()


def same_experiment(record: Tree, tree: Tree, other_record: Tree, other_tree: Tree) -> bool:
    """True if two runs, each given by its run.json and config.yaml, are the same experiment.

    A newer version may have added keys, which changes the hash: unless the hashes agree, the configs are compared. The
    config has no more than the recipe of a base policy: runs with other weights of it do not repeat each other.
    """
    # Two machines may pre-train other weights from one recipe (rounding), and these are two base policies.
    weights = {record.get("base_weights") for record in (record, other_record)} - {None}
    if len(weights) > 1:
        return False
    hashes = record.get("config_hash"), other_record.get("config_hash")
    if hashes[0] == hashes[1] or not (tree and other_tree):
        return hashes[0] == hashes[1]
    identity = configs().identity
    return identity(tree) == identity(other_tree)
