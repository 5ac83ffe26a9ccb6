"""Names the techniques that are on and had next to nothing to act on in the first steps of a run."""

import json
from operator import attrgetter
from pathlib import Path

from dapo_lit.config import Config
from dapo_lit.techniques import REGISTER

STEPS = 5
"""Steps that are looked at; fewer in a shorter run."""


def unused_techniques(config: Config, metrics: Path) -> list[str]:
    """One line for each, with the amount that was measured, the amount that is needed, and the key to change.

    A technique that its settings make idle is left out: the table before the first step has named it.
    """
    rows = {row["step"]: row for row in map(json.loads, metrics.read_text().splitlines())}  # a resumed run repeats some
    lines = []
    for switch, technique in REGISTER.items():
        regime, on = technique.regime, getattr(config.algorithm.techniques, switch)
        if not on or any(idle(lambda key: attrgetter(key)(config.algorithm)) for idle in technique.idle):
            continue
        metric = regime.metric_while_on or regime.metric
        values = [row[metric] for step, row in rows.items() if step and row.get(metric) is not None]
        if not values:
            continue
        acts, amount = regime.amount(sum(values) / len(values))
        if not acts:
            lines.append(
                f"techniques.{switch} has had next to nothing to act on in {len(values)} steps: {metric} asks for "
                f"{amount}. {regime.lever}".rstrip()
            )
    return lines
