"""The table of what was checked before the first step, one row a check, for trainings and evaluations.

A check that refuses raises; what is only suspicious is a warning below its row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

WIDTH = 11
"""Characters in the column of names."""


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    words: str
    warnings: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    """Lines below the row: what was looked at, for the eye."""


def run_checks(checks: Mapping[str, Callable[[], Finding]]) -> None:
    """Runs the checks in their order and prints a row for each as it ends; the first that raises ends them."""
    print("before the first step (preflight=false skips this)", flush=True)
    for name, check in checks.items():
        finding = check()
        print(f"  {name:<{WIDTH}}{finding.words}", flush=True)
        for line in finding.shown:
            print(f"    {line}", flush=True)
        for warning in finding.warnings:
            print(f"    warning: {warning}", flush=True)
