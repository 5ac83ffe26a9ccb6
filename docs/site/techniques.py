"""What committed studies found about one technique: the made part of its page, docs/techniques/NAME.md.

Rows are the tests of docs/claims.md on held-out accuracy; whether one is decided comes from there, and nowhere else.
"""

from pathlib import Path

from cells import EXPERIMENTS, cells, points, ratio
from claims import Test, judged
from inline import cost, effect

from ablations.compare.effects import registered_effects
from ablations.read.outcomes import primary_metric
from ablations.read.registration import read_plan
from ablations.techniques import REGISTER

TUNED = "tuned_joint/compared"
"""Each arm at its best learning rate: its contrasts are settings, which no statement of claims.yaml names."""


def our_evidence(page: Path) -> str:
    """Markdown: accuracy with minus without the technique of a page, in each study, and what it costs in tokens."""
    technique = REGISTER[page.stem]
    lines = [
        "| study | accuracy at equal steps, points | bases | p | tokens used | tokens needed |",
        "|---|---|---:|---|---:|---|",
    ]
    for test in (test for _, group in judged() for test in group):
        if (test.claim["contrast"], test.claim["outcome"]) == (technique.switch, "accuracy"):
            lines.append(_row(test))
    return "\n".join([*lines, _tuned(technique.switch)])


def _tuned(switch: str) -> str:
    """The row of a technique's arm against DAPO, each at the rate that it won with."""
    arms = {arm.partition("@")[0]: arm for arm in cells(TUNED).arms}
    name, sides = next((arm, arms[arm]) for arm in arms if arm.endswith(switch))
    words = ":".join([sides, arms["dapo"]] if "+" in name else [arms["dapo"], sides])
    found, size = effect(TUNED, words), points(effect(TUNED, words).estimate)
    runs, (plan, _) = cells(TUNED), read_plan(EXPERIMENTS / TUNED)
    registered = registered_effects(runs, plan, plan.reference if plan else None, primary_metric(runs))
    decided = any(one.decided and set(one.contrast.weights) == set(found.contrast.weights) for one in registered)
    return (
        "| [around DAPO, each arm at its best of three rates, `joint`](../../experiments/tuned_joint) | "
        f"{f'**{size}**' if decided else size} | {found.estimate.n} | {found.p:.2g} | {cost(TUNED, words, 'used')} | |"
    )


def _row(test: Test) -> str:
    folder, found = f"{test.study['folder']}/runs", test.comparison
    size = points(found.estimate)
    return (
        f"| [{test.study['name']}](../../experiments/{test.study['folder']}){'' if test.registered else ' *'} | "
        f"{f'**{size}**' if test.decided else size} | {found.estimate.n} | {found.p:.2g} | "
        f"x{ratio(folder, found.contrast):.2f} | {cost(folder, found.contrast, 'needed')} |"
    )
