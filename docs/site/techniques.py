"""What committed studies found about one technique: the made part of its page, docs/techniques/NAME.md.

Rows are the tests of docs/evidence.md on held-out accuracy; whether one is decided comes from there, and nowhere else.
Those around DAPO are one row a task, the mean over sets of base policies (pooled.py).
"""

from pathlib import Path

import pooled
from cells import points, ratio
from claims import Test, judged
from inline import cost

from ablations.techniques import REGISTER


def our_evidence(page: Path) -> str:
    """Markdown: accuracy with minus without the technique of a page, in each study, and what it costs in tokens."""
    technique = REGISTER[page.stem]
    lines = [
        "| study | accuracy at equal steps, points | bases | p | tokens used | tokens needed |",
        "|---|---|---:|---|---:|---|",
    ]
    for test in (test for _, group in judged() for test in group):
        if (test.claim["contrast"], test.claim["outcome"]) == (technique.switch, "accuracy") and not test.around_dapo:
            lines.append(_row(test))
    return "\n".join([*lines, *_around_dapo(technique.switch)])


def _around_dapo(switch: str) -> list[str]:
    """A row a task that has several sets of base policies."""
    lines = []
    for task in pooled.SETS:
        if pooled.several(task, switch):
            found = pooled.over_sets(task, switch)
            name = f"[around DAPO, {task}, {found.sets} sets](../findings.md#around-dapo-over-sets-of-base-policies) *"
            lines.append(f"| {name} | {points(found.estimate)} | {found.bases} | | {pooled.tokens(task, switch)} | |")
    return lines


def _row(test: Test) -> str:
    folder, found = f"{test.study['folder']}/runs", test.comparison
    size = points(found.estimate)
    return (
        f"| [{test.study['name']}](../../experiments/{test.study['folder']}){'' if test.registered else ' *'} | "
        f"{f'**{size}**' if test.decided else size} | {found.estimate.n} | {found.p:.2g} | "
        f"x{ratio(folder, found.contrast):.2f} | {cost(folder, found.contrast, 'needed')} |"
    )
