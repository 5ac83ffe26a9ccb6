"""The base policies of a study by the hash of their weights: one recipe has other weights on another processor."""

import hashlib

from dapo_lit.study.read.runs import Runs

UNKNOWN = "not recorded"


def weights_by_base(runs: Runs) -> dict[int, str]:
    """The hash of each base policy's weights, by its seed; several are listed, as from machines of different kinds."""
    found: dict[int, set[str]] = {}
    for run in runs.usable:
        weights = run.record.get("base_weights") or (run.config.get("policy") or {}).get("path") or UNKNOWN
        found.setdefault(run.base, set()).add(str(weights))
    return {base: ", ".join(sorted(found[base])) for base in sorted(found)}


def hash_of_bases(runs: Runs) -> str:
    """One hash for all base policies of a study, or that some are not recorded."""
    by_base = weights_by_base(runs)
    if any(UNKNOWN in weights for weights in by_base.values()):
        return UNKNOWN
    return hashlib.sha256(repr(sorted(by_base.items())).encode()).hexdigest()[:8]
