"""Scores the responses of a run or an evaluation by additional rules and shows where the rules differ.

Existing samples are rescored, so an additional rule costs training nothing and can be chosen later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dapo_lit.config import ConfigError
from dapo_lit.evaluation.model_source import run_config, run_of
from dapo_lit.rewards.equivalence import Rule
from dapo_lit.rewards.extraction import Extraction
from dapo_lit.rewards.pool import Reference, Verifier


@dataclass(frozen=True)
class Answered:
    """One response and its reference answer."""

    place: str
    """`step 3, gsm8k-12, sample 0`."""
    response: str
    answer: str


def recorded_answers(place: Path) -> tuple[list[Answered], Extraction]:
    """All completions in the recorded rollouts of a run, and the run's extraction.

    Raises:
        ConfigError: the folder is not a run, or has no recorded rollouts.
    """
    run = run_of(place)
    extraction: Extraction = run_config(run).reward.extraction
    files = sorted((run / "rollouts").glob("step_*.parquet"))
    if not files:
        raise ConfigError(f"{run}: no recorded rollouts; train with, for example, logger.rollouts_every=1")
    answered = []
    for file in files:
        step = int(file.stem.removeprefix("step_"))
        columns = ["problem_id", "sample_index", "submitted_step", "response", "answer"]
        for problem, sample, submitted, response, answer in pd.read_parquet(file, columns=columns).itertuples(
            index=False, name=None
        ):
            if submitted == step:  # a completion that was carried over is counted in the step that sampled it
                answered.append(Answered(f"step {step}, {problem}, sample {sample}", response, answer))
    return answered, extraction


def verdicts(
    answered: Sequence[Answered], rules: Sequence[Rule], extraction: Extraction, deadline_s: float, workers: int
) -> pd.DataFrame:
    """One row a response: place, extracted answer, reference answer, and a column of verdicts for each rule."""
    table = pd.DataFrame({"place": [a.place for a in answered]})
    for rule in rules:
        with Verifier(rule=rule, extraction=extraction, deadline_s=deadline_s, workers=workers) as verifier:
            scores = verifier.score([(Reference(a.place, a.answer), a.response) for a in answered])
        table["extracted"] = [score.answer for score in scores]
        table["answer"] = [a.answer for a in answered]
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
