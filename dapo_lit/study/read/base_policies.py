"""The base policies of a study by the hash of their weights: one recipe has other weights on another processor."""

import hashlib

from dapo_lit.study.read.runs import Runs

UNKNOWN = "not recorded"


def weights_by_base(runs: Runs) -> dict[str, str]:
    """The hash of each base policy's weights; the path of a policy of your own."""
    found = {}
    for run in runs.usable:
        path = (run.config.get("policy") or {}).get("path")
        found[run.base] = str(path or run.record.get("base_weights") or UNKNOWN)
    return dict(sorted(found.items()))


def hash_of_bases(runs: Runs) -> str:
    """One hash for all base policies of a study, or that some are not recorded."""
    by_base = weights_by_base(runs)
    if UNKNOWN in by_base.values():
        return UNKNOWN
    return hashlib.sha256(repr(sorted(by_base.items())).encode()).hexdigest()[:8]
