"""The values of conf/, read without Hydra: the default run, and the switches that an algorithm's own file sets."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml


def config_folder() -> Path:
    """`conf/`: inside an installed package, or at the top of the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@cache
def choice(group: str, name: str) -> dict[str, Any]:
    """The values of conf/<group>/<name>.yaml on top of those of the files in its defaults list; {} without a file."""
    file = config_folder() / group / f"{name}.yaml"
    if not file.is_file():
        return {}
    tree = yaml.safe_load(file.read_text())
    values: dict[str, Any] = {}
    for base in tree.pop("defaults", ()):
        if isinstance(base, str) and base != "_self_":  # a mapping chooses a file of another group
            values = _merged(values, choice(group, base))
    return _merged(values, tree)


@cache
def default_run() -> dict[str, Any]:
    """The config of a run for which nothing was chosen (conf/config.yaml)."""
    tree = yaml.safe_load((config_folder() / "config.yaml").read_text())
    groups = [entry for entry in tree.pop("defaults") if isinstance(entry, Mapping)]
    chosen = {group: name for entry in groups for group, name in entry.items() if " " not in group}
    for group, name in list(chosen.items()):
        chosen |= overridden(group, name)
    return _merged({group: choice(group, name) for group, name in chosen.items()}, tree)


def default_study() -> dict[str, Any]:
    """What a study of an older version is where it does not say."""
    return dict(choice("study/shared", "default")["study"])


def overridden(group: str, name: str) -> dict[str, str]:
    """The choices of other groups that a file makes, as a task chooses its reflection patterns."""
    file = config_folder() / group / f"{name}.yaml"
    tree = yaml.safe_load(file.read_text()) if file.is_file() else {}
    entries = [entry for entry in tree.get("defaults", ()) if isinstance(entry, Mapping)]
    return {key.removeprefix("override /").split("@")[0]: value for entry in entries for key, value in entry.items()}


def switches_of(family: str) -> dict[str, bool]:
    """The switches that an algorithm's own file sets: what a run of it is named against."""
    return dict(choice("algorithm", family).get("techniques", {}))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(below[key], value) if isinstance(value, Mapping) and isinstance(below.get(key), Mapping) else value
        for key, value in above.items()
    }
    return {**below, **both}
