"""Scores the responses of a run or an evaluation by additional rules and shows where the rules differ.

Existing samples are rescored, so an additional rule costs training nothing and can be chosen later.
"""

from collections.abc import Sequence

import pandas as pd

from dapo_lit.rewards.verifier import Reference, Verifier
from math_answers.extraction import Extraction
from math_answers.rules import Rule


def verdicts(
    answered: pd.DataFrame, rules: Sequence[Rule], extraction: Extraction, deadline_s: float, workers: int
) -> pd.DataFrame:
    """One row a response: place, extracted answer, reference answer, and a column of verdicts for each rule.

    answered: columns `place` (`step 3, gsm8k-12, sample 0`), `response` and `answer` (the reference).
    """
    table = answered[["place"]].copy()
    columns = answered[["place", "answer", "response"]].itertuples(index=False, name=None)
    pairs = [(Reference(place, answer), response) for place, answer, response in columns]
    for rule in rules:
        with Verifier(rule=rule, extraction=extraction, deadline_s=deadline_s, workers=workers) as verifier:
            scores = verifier.score(pairs)
        table["extracted"] = [score.answer for score in scores]
        table["answer"] = answered["answer"]
        table[rule] = [score.correct for score in scores]
    return table


def rule_differences(table: pd.DataFrame, rules: Sequence[Rule], show: int) -> str:
    """Accuracy by rule, and the pairs (extracted, reference) on which the rules differ, most frequent first."""
    lines = [f"{rule:<9}{table[rule].mean():.4f} right of {len(table):,}" for rule in rules]
    differ = table[table[list(rules)].nunique(axis=1) > 1]
    lines.append(f"the rules differ on {len(differ):,} responses ({len(differ) / max(1, len(table)):.2%})")
    if len(differ):
        pairs = differ.groupby(["extracted", "answer", *rules]).size().sort_values(ascending=False, kind="stable")
        shown = pairs.head(show).rename("responses").reset_index()
        lines.append(shown.to_string(index=False, max_colwidth=46))
        if len(pairs) > show:
            lines.append(f"... and {len(pairs) - show:,} more pairs")
    return "\n".join(lines)
