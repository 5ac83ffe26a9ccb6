"""Further pairs of a packed study are made as its packed cells were, whatever the shipped settings are now."""

import json
from pathlib import Path

from omegaconf import DictConfig

from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import ConfigError
from dapo_lit.config.identity import differences, identity
from dapo_lit.imports import names_code
from dapo_lit.study.read.packed_cells import read_packed

SEEDED = ("seed", "task.base_seed")


def protocol(folder: Path, arguments: list[str], study: list[str], given: set[str]) -> list[str]:
    """Overrides with which the study's cells have the settings of those packed in `folder`.

    Args:
        arguments, study: what the study is composed from.
        given: keys of the command line, which stay as they are.
    """
    run = next(iter(read_packed(folder)), None)
    if run is None or not run.config.get("study"):
        return []
    cell = composed_tree([*arguments, *study, f"seed={run.seed}", f"study.arm='{run.arm}'"])
    changed = differences(identity(run.config), identity(_with_switches(cell, run.identity)))
    for key, (before, now) in changed.items():
        if key not in given and names_code(key, before):
            raise ConfigError(
                f"study.packed={folder}: its cells ran with {key}={before}, which is {now} here, and a packed study is "
                f"data: read that code, and name it on the command line, {key}=..."
            )
    kept = [
        f"{key}={json.dumps(before)}"
        for key, (before, now) in changed.items()
        if key not in (*SEEDED, *given) and key in run.identity
    ]
    bases = run.config["study"].get("bases", (run.config.get("regime") or {}).get("bases", []))
    return kept if "study.bases" in given else [*kept, f"study.bases={json.dumps(bases)}"]


def _with_switches(cell: DictConfig, packed: dict[str, object]) -> dict[str, object]:
    """The composed config with the arm's values of the packed cell: those are the study's, and no protocol."""
    tree = resolved(cell)
    arm = str(tree["study"]["arm"]).split("@")[1:]
    keys = [text.partition("=")[0] for text in arm]
    for key in [k for k in packed if k.startswith("algorithm.techniques.") or any(k.endswith(f".{s}") for s in keys)]:
        *parents, last = key.split(".")
        section = tree
        for parent in parents:
            section = section[parent]
        section[last] = packed[key]
    return dict(tree)
