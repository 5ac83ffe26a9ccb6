"""The table of docs/evidence.md: every effect of a committed study that tests a statement of docs/claims.yaml; and the
file of what was found where that `dapo_lit.advise` compares runs with. `python docs/site/made.py` writes both.

A statement is one question, and its tests are one family: p is adjusted over the tests of the same statement, so that a
study of another question unsettles nothing. `Test.decided` is the one place that says whether a test is decided; the
page, README (effects.py) and `advise` take it from there.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from around import name
from cells import EXPERIMENTS, load_once

from ablations.compare.contrasts import Contrast, Effect, compare_on, contrasts
from ablations.compare.effects import families_of, registered_effects
from ablations.compare.statistics import holm_attainable, smallest_effect
from ablations.read.outcomes import amount, primary_metric, unit
from ablations.read.registration import read_plan
from ablations.read.run import Run
from ablations.techniques import REGISTER, step_mean

DOCS = Path(__file__).parents[1]
FINDINGS = DOCS.parent / "ablations" / "compare" / "findings.json"
ALPHA = 0.05
"""Error of a statement over all its tests."""


@dataclass(frozen=True)
class Test:
    """A statement in one study."""

    claim: Mapping[str, Any]
    study: Mapping[str, Any]
    outcome: str
    comparison: Effect
    registered: Effect | None
    margin: float | None
    adjusted: float = 1.0
    """p over the tests of the same statement."""

    @property
    def decided(self) -> bool:
        """True if its p holds over all tests of the statement and, where it was registered, in its own family too."""
        return self.adjusted <= ALPHA and (self.registered is None or self.registered.decided)

    @property
    def up(self) -> bool:
        return self.comparison.estimate.mean > 0

    @property
    def around_dapo(self) -> bool:
        """True for an accuracy around DAPO. The study decides its sign; its size is the mean over sets (pooled.py)."""
        return self.claim["outcome"] == "accuracy" and name(self.comparison.contrast) is not None


def tests(tree: Mapping[str, Any]) -> list[Test]:
    """Every statement in every study that has its contrast, in the order of the statements."""
    found = [test for study in tree["studies"] for test in _of_study(study, tree["claims"])]
    return sorted(found, key=lambda test: tree["claims"].index(test.claim))


def _of_study(study: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> list[Test]:
    folder = EXPERIMENTS / study["folder"] / "runs"
    runs, (plan, _) = load_once(folder), read_plan(folder)
    metric, reference = primary_metric(runs, plan.metric if plan else None), plan.reference if plan else None
    registered = registered_effects(runs, plan, reference, metric)
    margins = {family.name: family.margin for family in families_of(runs, plan, reference, metric)}
    found = []
    for contrast in contrasts(runs.arms, reference):
        for claim in claims:
            if contrast.family == study["family"] and claim["contrast"] in (contrast.technique, contrast.label):
                outcome = study["accuracy"] if claim["outcome"] == "accuracy" else claim["outcome"]
                # By what is compared: a study may have registered it under a name of its own, as a pair of arms.
                own = next((e for e in registered if _same(e.contrast, contrast) and e.outcome == outcome), None)
                comparison = compare_on(runs, contrast, outcome)
                if not comparison.seeds:
                    raise SystemExit(f"docs/claims.yaml: no pair of {study['folder']} has {outcome}")
                margin = margins.get(own.contrast.family) if own else None
                found.append(Test(claim, study, outcome, comparison, own, margin))
    return found


def _same(one: Contrast, other: Contrast) -> bool:
    return dict(one.weights) == dict(other.weights)


def adjusted(of_claim: Sequence[Test]) -> list[Test]:
    """The tests of one statement with their p adjusted over each other."""
    p = [1.0 if test.comparison.p is None else test.comparison.p for test in of_claim]
    values = [max(1, test.comparison.estimate.n) for test in of_claim]
    return [replace(test, adjusted=own) for test, own in zip(of_claim, holm_attainable(p, values), strict=True)]


def verdict(of_claim: Sequence[Test]) -> str:
    """One verdict of all tests of a statement: by those that are decided."""
    expect = of_claim[0].claim["expect"]
    within = [test.registered is not None and test.registered.verdict == "within the margin" for test in of_claim]
    decided = [test for test in of_claim if test.decided]
    signs = {"up" if test.up else "down" for test in decided}
    if not signs and all(within):
        return "agrees" if expect == "none" else "not reproduced in this setting"
    if not signs:
        return "not decided"
    note = "" if any(test.registered for test in decided) else " (exploratory)"
    if len(signs) == 2:
        return f"depends on the setting{note}"
    return ("agrees" if signs == {expect} else "contradicts") + note


Judged = list[tuple[str, list[Test]]]


@cache
def judged() -> Judged:
    """Each statement's verdict with its tests."""
    tree = yaml.safe_load((DOCS / "claims.yaml").read_text(encoding="utf-8"))
    groups = itertools.groupby(tests(tree), key=lambda test: tree["claims"].index(test.claim))
    each = [adjusted(list(group)) for _, group in groups]
    return [(verdict(group), group) for group in each]


def table() -> str:
    """Markdown: a row a test, with the statement and its verdict in the first; decided effects in bold."""
    lines = [
        "|statement|verdict|study|effect, with minus without|bases|p|margin|can see|",
        "|---|---|---|---|---:|---|---|---|",
    ]
    for words, group in judged():
        for place, test in enumerate(group):
            estimate = test.comparison.estimate
            key, least = test.outcome, smallest_effect(estimate.n)
            interval = "" if estimate.low is None else f" [{amount(key, estimate.low)}, {amount(key, estimate.high)}]"
            effect = f"{amount(key, estimate.mean, signed=True)}{interval} {unit(key)}"
            if test.around_dapo:
                effect = (
                    f"{'up' if test.up else 'down'} ([over sets](findings.md#around-dapo-over-sets-of-base-policies))"
                )
            first = (f"{test.claim['id']} {test.claim['says']}", f"**{words}**") if place == 0 else ("", "")
            cells = [
                *first,
                f"[{test.study['name']}](../experiments/{test.study['folder']})" + ("" if test.registered else " *"),
                f"**{effect}**" if test.decided else effect,
                str(estimate.n),
                f"{test.adjusted:.2g}",
                "" if not test.registered else amount(key, test.margin) if test.margin else "none",
                amount(key, least * estimate.sd) if least and estimate.sd else "–",
            ]
            lines.append(f"|{'|'.join(cells)}|")  # no spaces: most cells are one word
    return "\n".join(lines) + "\n"


def findings() -> str:
    """JSON: each technique's effect on held-out accuracy in each study, and what its runs without it measured."""
    rows = []
    for test in (test for _, group in judged() for test in group if test.claim["outcome"] == "accuracy"):
        estimate, technique = test.comparison.estimate, REGISTER.get(test.claim["contrast"])
        if technique is None or estimate is None:
            continue
        runs = load_once(EXPERIMENTS / test.study["folder"] / "runs")
        # The effect's own: a study may leave the technique out at several settings, each with numbers of its own.
        without = [run for run in runs if test.comparison.contrast.weights.get(run.arm, 0) < 0]
        keys = (technique.condition.metric, *technique.condition.like)
        columns = [part for key in keys for part in key.split(":")]
        steps = [_rows(run, columns) for run in without]
        measured = {}
        for key in keys:
            means = [mean for rows_of_run in steps if (mean := step_mean(rows_of_run, key)) is not None]
            measured[key] = round(sum(means) / len(means), 4)
        effect = [round(100 * float(value), 1) for value in (estimate.mean, estimate.low, estimate.high, estimate.sd)]
        verdict = test.registered.verdict if test.registered else ""
        if test.registered and test.registered.decided and not test.decided:
            verdict = "undecided"
        rows.append(
            {
                "technique": technique.switch,
                "study": test.study["name"].replace("`", ""),
                "folder": test.study["folder"],
            }
            | {"measured": measured, "n": estimate.n, "verdict": verdict}
            | dict(zip(("points", "low", "high", "sd"), effect, strict=True))
        )
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def _rows(run: Run, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Its steps with these metrics; a table's own records take thirty times as long."""
    lists = {key: run.metrics[key].tolist() for key in columns if key in run.metrics}
    lists["step"] = run.metrics.index.tolist()
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
