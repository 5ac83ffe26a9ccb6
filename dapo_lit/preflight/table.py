"""The table of what was checked before the first step, one row a check, for trainings and evaluations.

A check that refuses raises; what is only suspicious is a warning below its row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dapo_lit.log import log

WIDTH = 11
"""Characters in the column of names."""


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    words: str
    warnings: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    """Lines below the row: what was looked at, for the eye."""


def run_checks(checks: Mapping[str, Callable[[], Finding]], opened: bool = False) -> None:
    """Runs the checks in their order and prints a row for each as it ends; the first that raises ends them.

    opened: the table has rows already.
    """
    if not opened:
        log.info("before the first step (preflight=false skips this)")
    for name, check in checks.items():
        finding = check()
        log.info(f"  {name:<{WIDTH}}{finding.words}")
        for line in finding.shown:
            log.info(f"    {line}")
        for warning in finding.warnings:
            log.warning(f"    {warning}")
