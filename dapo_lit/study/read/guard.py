"""What must hold before arms are compared: one code version, only declared differences, no arm counted twice.

The tags of the config's fields say which keys count (config/kinds.py).
"""

from collections.abc import Collection, Mapping
from typing import Any

from dapo_lit.config.identity import config_hash, identity
from dapo_lit.study.designs import DESIGNS, TECHNIQUES, design
from dapo_lit.study.read.runs import Runs


def refusals(runs: Runs, declared: Collection[str] = ()) -> list[str]:
    """Reasons why these runs may not be compared, empty if they may."""
    return _mixed_code(runs) + _twice(runs) + _undeclared(runs, declared) + _within_arm(runs)


def composed_refusals(configs: Mapping[str, Mapping[str, Any]], reference: str, declared: Collection[str]) -> list[str]:
    """Reasons why a study may not run: arms whose composed configs differ in undeclared keys, or do not differ.

    Args:
        configs: arm -> nested config, all with the same seed.
    """
    table = {arm: _relevant(config) for arm, config in configs.items()}
    found: dict[str, dict[str, Any]] = {}
    for arm, config in table.items():
        for key in sorted(set(config) | set(table[reference])):
            values = (config.get(key, "absent"), table[reference].get(key, "absent"))
            if values[0] != values[1] and key not in declared:
                found.setdefault(key, {reference: values[1]})[arm] = values[0]
    reasons = [
        f"arms differ in {key}, which the study does not declare "
        f"({', '.join(f'{arm}: {value}' for arm, value in list(values.items())[:4])})"
        for key, values in found.items()
    ]
    seen: dict[str, str] = {}
    for arm, config in table.items():
        twin = seen.setdefault(repr(sorted(config.items())), arm)
        if twin != arm:
            reasons.append(f"{twin} and {arm} are the same config under two names")
    return reasons


def declared_keys(runs: Runs, registered: Collection[str] = ()) -> set[str]:
    """Config keys in which the arms may differ: the switches, what the study's design sets, what was registered."""
    keys = {f"algorithm.techniques.{t}" for t in TECHNIQUES} | set(registered)
    for study in runs.studies:
        if study in DESIGNS:
            keys |= design(study).declared
    return keys


def config_differences(runs: Runs) -> dict[str, dict[str, Any]]:
    """Config keys in which arms differ at the same seed: key -> arm -> value at its lowest seed."""
    by_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, {})[run.arm] = _relevant(run.config)
    table: dict[str, dict[str, Any]] = {}
    for cells in by_seed.values():
        for key in sorted(set().union(*cells.values())):
            values = {arm: config.get(key, "absent") for arm, config in cells.items()}
            if len({repr(value) for value in values.values()}) > 1:
                table.setdefault(key, {}).update({arm: v for arm, v in values.items() if arm not in table.get(key, {})})
    return table


def code_versions(runs: Runs) -> dict[str, list[str]]:
    """Code hash -> names of its runs."""
    table: dict[str, list[str]] = {}
    for run in runs:
        table.setdefault(str(run.record.get("code_hash", "unknown")), []).append(run.name)
    return table


def _relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that decide what a run learns and when it ends, but for the seed."""
    return {key: value for key, value in identity(config).items() if key != "seed"}


def _mixed_code(runs: Runs) -> list[str]:
    versions = code_versions(runs)
    if len(versions) < 2:
        return []
    counts = ", ".join(f"{code[:12]} ({len(names)} runs, {names[0]} first)" for code, names in versions.items())
    return [f"the runs were made by {len(versions)} versions of the code: {counts}"]


def _twice(runs: Runs) -> list[str]:
    first: dict[tuple[str, int], str] = {}
    found = []
    for run in runs:
        # The stored hash, and the present one: two versions hash one config differently.
        hashes = {str(run.record["config_hash"])} if run.record.get("config_hash") else set()
        for value in hashes | ({config_hash(run.config)} if run.config else set()):
            twin = first.setdefault((value, run.seed), run.name)
            if twin != run.name:
                found.append(
                    f"{twin} and {run.name} have one config hash ({value[:12]}): they are the same arm under two names"
                )
                break
    return found


def _undeclared(runs: Runs, declared: Collection[str]) -> list[str]:
    allowed = declared_keys(runs, declared)
    found = []
    for key, values in config_differences(runs).items():
        if key not in allowed:
            shown = ", ".join(f"{arm}: {value}" for arm, value in list(values.items())[:4])
            found.append(f"arms differ in {key}, which the study does not declare ({shown})")
    return found


def _within_arm(runs: Runs) -> list[str]:
    """Seeds of one arm whose configs differ in more than the seed (a base seed that follows the seed may)."""
    found = []
    for arm in runs.arms:
        first, *others = runs.of(arm)
        for run in others:
            a, b = _relevant(first.config), _relevant(run.config)
            keys = [k for k in sorted(set(a) | set(b)) if a.get(k) != b.get(k) and not k.endswith("seed")]
            if keys:
                found.append(f"{first.name} and {run.name} differ in {', '.join(keys)}")
                break
    return found
