"""Checks before arms are compared: one code version, only declared differences.

The trainer says which keys count (trainer.py).
"""

from collections.abc import Collection, Mapping
from typing import Any

from ablations.designs import settings_of
from ablations.inputs import are_several, causes, deciding, in_words, recorded
from ablations.read.run import Run
from ablations.read.runs import Runs
from ablations.techniques import REGISTER
from ablations.trainer import configs, remedies


def refusals(runs: Runs, registered: Collection[str] = ()) -> list[str]:
    """Reasons why these runs may not be compared, empty if they may.

    registered: config keys in which the arms may differ, beside the switches; if none, those that their names set.
    """
    declared = {f"algorithm.techniques.{t}" for t in REGISTER}.union(
        registered or set[str]().union(*map(settings_of, runs.arms))
    )
    found = _mixed_code(runs) + _undeclared(config_differences(runs), declared)
    return found + _within_arm(runs) + _unequal_bases(runs) + _other_inputs(runs)


def composed_refusals(composed: Mapping[str, Mapping[str, Any]], declared: Collection[str]) -> list[str]:
    """Reasons why a study may not run: arms whose composed configs differ in undeclared keys, or do not differ.

    composed: arm -> nested config, all with the same seed.
    """
    table = {arm: _relevant(configs().identity(config)) for arm, config in composed.items()}
    reasons = _undeclared(_differing(table), declared)
    first: dict[str, str] = {}
    for arm, config in table.items():
        twin = first.setdefault(repr(sorted(config.items())), arm)
        if twin != arm:
            reasons.append(f"{twin} and {arm} are the same config under two names")
    return reasons


def config_differences(runs: Runs) -> dict[str, dict[str, Any]]:
    """Config keys in which arms differ at the same seed: key -> arm -> value at its lowest seed."""
    table: dict[str, dict[str, Any]] = {}
    for seed in dict.fromkeys(run.seed for run in runs):
        cells = {run.arm: _relevant(run.identity) for run in runs if run.seed == seed}
        for key, values in _differing(cells).items():
            table[key] = values | table.get(key, {})
    return table


def code_versions(runs: Runs) -> dict[str, list[str]]:
    """Code hash -> names of its runs."""
    table: dict[str, list[str]] = {}
    for run in runs:
        table.setdefault(str(run.record.get("code_hash", "unknown")), []).append(run.name)
    return table


def _relevant(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that decide what a run learns and when it ends, without the seed. A switch that a run lacks is off."""
    keys = {f"algorithm.techniques.{t}": False for t in REGISTER} | dict(identity) if identity else {}
    # Options that one arm sets are no keys of the others, which have an empty mapping in their place.
    return {key: value for key, value in keys.items() if key != "seed" and value != {}}


def _differing(flat: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Keys in which flat configs differ: key -> arm -> value. Keys that are science in some configs count in those."""
    sometimes = set(configs().sometimes)
    table = {
        key: {arm: config.get(key, "absent") for arm, config in flat.items() if key in config or key not in sometimes}
        for key in sorted(set().union(*flat.values()))
    }
    return {key: values for key, values in table.items() if len(set(map(repr, values.values()))) > 1}


def _undeclared(differences: Mapping[str, Mapping[str, Any]], declared: Collection[str]) -> list[str]:
    reasons = []
    for key, values in differences.items():
        if key not in declared:
            first: dict[str, str] = {}  # an arm for each value
            for arm, value in values.items():
                first.setdefault(repr(value), f"{arm}: {' '.join(str(value).split())}")  # a line, whatever the text
            shown = ", ".join(list(first.values())[:4])
            reasons.append(f"arms differ in {key}, which the study does not declare ({shown})")
    return reasons


def _mixed_code(runs: Runs) -> list[str]:
    versions = code_versions(runs)
    if len(versions) < 2:
        return []
    counts = ", ".join(f"{code[:12]} ({len(names)} runs, {names[0]} first)" for code, names in versions.items())
    return [f"the runs were made by {len(versions)} versions of the code: {counts}"]


def _unequal_bases(runs: Runs) -> list[str]:
    """A seed whose arms have one recipe of a base policy and other weights of it, so that they share no start."""
    first: dict[tuple[int, str], Run] = {}
    for run in runs:
        weights = run.record.get("base_weights")
        if weights is None or "origin" in run.record:  # an older run, a policy from elsewhere, or a fork of a state
            continue
        twin = first.setdefault((run.seed, base_recipe(run.identity)), run)
        if weights != twin.record["base_weights"]:
            return [f"{twin.name} and {run.name}: {other_base(twin.record, run.record)}"]
    return []


def _other_inputs(runs: Runs) -> list[str]:
    """A sentence for each part of what runs of equal settings read (inputs.py) that is not the same in all."""
    first: dict[tuple[str, str], tuple[Run, str]] = {}
    found: dict[str, str] = {}
    for run in runs:
        for name, digest in recorded(run.record).items():
            settings = repr(sorted(deciding(name, run.identity).items()))
            twin, known = first.setdefault((name, settings), (run, digest))
            if digest != known and name not in found:
                found[name] = f"{twin.name} ({known}) and {run.name} ({digest})"
    reasons = []
    for name in causes(found):
        words, verb = in_words([name], runs.runs[0].config), "are" if are_several([name]) else "is"
        apart = "these runs do not belong together; make those of one kind again"
        reasons.append(f"{words} {verb} not the same in {found[name]}: {apart}")
    return reasons


def base_recipe(identity: Mapping[str, Any]) -> str:
    """What the recipe of a run's base policy is made of, as text that two runs can be compared by."""
    return repr(sorted((key, value) for key, value in identity.items() if key.startswith(("task.", "policy."))))


def other_base(before: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What is wrong with two arms of a seed whose run.json, or what will be in it, have other weights of one base."""
    one, other = (f"{x['base_weights']} ({x.get('base_origin') or 'origin not recorded'})" for x in (before, here))
    return (
        f"one recipe of a base policy and two sets of weights, {one} and {other}. Machines of different kinds make "
        f"different ones{remedies().unequal_bases}"
    )


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The settings in which two cells of an arm differ, but for what follows their seeds."""
    differing = _differing({"one": _relevant(one), "other": _relevant(other)})
    return [key for key in differing if not key.endswith(("seed", "noise_stream"))]


def _within_arm(runs: Runs) -> list[str]:
    """Seeds of one arm whose configs differ in more than the seed (a base seed that follows the seed may)."""
    found = []
    for arm in runs.arms:
        first, *others = runs.of(arm)
        for run in others:
            if keys := apart(first.identity, run.identity):
                found.append(f"{first.name} and {run.name} differ in {', '.join(keys)}")
                break
    return found
