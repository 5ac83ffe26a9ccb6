"""Evaluates a model on a benchmark.

    python -m dapo_lit.evaluate policy=smollm2_135m benchmark=gsm8k_test limit=20 n=4      a model
    python -m dapo_lit.evaluate ckpt=runs/single/dapo/seed_0 benchmark=chain_sum_heldout   a run's newest checkpoint

Prints a table with intervals over questions and writes the samples to a folder. Run again after a kill, or with more
problems or samples, it continues from the samples in the folder; docs/examples/compare_evaluations.py compares two
folders question by question. Left out: several GPUs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ablations.compare.statistics import Estimate, t_interval
from ablations.errors import UserError, one_line
from ablations.screen import print_table
from dapo_lit.cli.command import run_command
from dapo_lit.cli.overrides import parsed_overrides
from dapo_lit.config import ConfigError
from dapo_lit.config.commands import EvaluateConfig, unread
from dapo_lit.evaluation.voting import VoteCounts, average, consensus, pass_at_k
from dapo_lit.preflight.machine import check_gpu_for

if TYPE_CHECKING:
    import pandas as pd

    from dapo_lit.evaluation.resumable import Result


SCHEMA = "dapo_lit/evaluate/1"
"""Of what --json prints: schemas/evaluate.json."""
METHOD = "95 % t-intervals over questions, one always right and one always wrong question added (docs/evaluation.md)"


def evaluate(config: EvaluateConfig, overrides: list[str]) -> None:
    if config.device == "cuda":
        check_gpu_for("device=cuda")
    import torch

    from dapo_lit.evaluation.model_source import is_of_run, open_model
    from dapo_lit.evaluation.resumable import evaluate_model

    keys = [override.key_or_group for override in parsed_overrides(overrides)]
    reasons = (unread(key, config.ckpt, config.ckpt is not None and is_of_run(Path(config.ckpt))) for key in keys)
    if faults := [*filter(None, reasons)]:
        raise ConfigError(one_line(faults))
    torch.set_num_threads(config.threads)
    as_json = config.answer == "json"
    # With JSON, standard output has the answer and nothing else.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        result = evaluate_model(config, open_model(config.ckpt, config.policy, config.device))
    rows = rows_of(result)
    if as_json:
        print(json.dumps(described(result, rows), indent=1, allow_nan=False))
    else:
        report(result, rows, config.show)


def rows_of(result: Result) -> dict[str, Estimate]:
    """What the table of one model has: `summary`, and the share of responses that reflect."""
    import pandas as pd

    from dapo_lit.rollout.metrics import MARK, WORDS, reflects

    table = pd.DataFrame([asdict(s) for s in result.evaluation.samples])
    rows = summary(table, result.evaluation.vote_counts)
    pattern = MARK if result.benchmark.settings.source == "chain_sum" else WORDS
    table["reflects"] = [reflects(text, pattern) for text in table["response"]]
    return rows | {"reflection_frac": share_interval(by_question(table, "reflects").mean(axis=1))}


def described(result: Result, rows: Mapping[str, Estimate]) -> dict[str, Any]:
    """The evaluation as schemas/evaluate.json describes it."""
    samples = result.evaluation.samples
    judged = [s for s in samples if not s.missing]
    return {
        "schema": SCHEMA,
        "model": result.label,
        "benchmark": result.benchmark.settings.name,
        "questions": len(result.evaluation.vote_counts),
        "samples_a_question": result.evaluation.k,
        "metrics": [
            {"metric": key, "estimate": each.mean, "low": each.low, "high": each.high} for key, each in rows.items()
        ],
        "without_answer": sum(s.extracted is None for s in judged),
        "without_verdict": len(samples) - len(judged),
        "samples": str(result.folder / "samples.parquet"),
    }


def report(result: Result, rows: Mapping[str, Estimate], show: int) -> None:
    """Prints the table of one model and some responses."""
    name, samples = result.benchmark.settings.name, result.evaluation.samples
    questions = len(result.evaluation.vote_counts)
    print(f"\n{result.label} on {name}: {questions} questions x {result.evaluation.k} samples")
    lines = [(key, *cells(estimate, 1 if key == "length_mean" else 3)) for key, estimate in rows.items()]
    print_table(("", "estimate", "95 % interval"), lines)
    print(METHOD)
    judged = [s for s in samples if not s.missing]
    print(f"responses without an answer: {sum(s.extracted is None for s in judged)} of {len(judged)}")
    if missing := [s for s in samples if s.missing]:
        late = sum(s.timed_out for s in missing)
        print(
            f"{len(missing)} responses have no verdict ({late} late, {len(missing) - late} failed) and are left out of "
            "avg@, pass@ and cons@ of their questions"
        )
    print_responses(result, show)
    print(f"samples {result.folder / 'samples.parquet'}")


def summary(table: pd.DataFrame, vote_counts: Sequence[VoteCounts]) -> dict[str, Estimate]:
    """avg@n, pass@k for k = 2, 4, ... and n, cons@n, length and truncation, each with its interval over questions.

    Samples without a verdict are left out of the first three, as in `Evaluation.metrics`.

    table: a row a sample, n of each question. vote_counts: of each question, of its samples with a verdict.

    Raises UserError: no sample has a verdict.
    """
    n = by_question(table, "correct").shape[1]
    votes = [b for b in vote_counts if b.num_samples]
    if not votes:
        raise UserError(f"not one of {len(table)} responses has a verdict; fix the benchmark's rule or its deadline")
    rows = {f"avg@{n}": share_interval([*map(average, votes)])}
    for k in [k for k in (2**i for i in range(1, n.bit_length())) if k < n] + [n] * (n > 1):
        rows[f"pass@{k}"] = share_interval([pass_at_k(b.num_samples, b.right, min(k, b.num_samples)) for b in votes])
    rows[f"cons@{n}"] = share_interval([*map(consensus, votes)])
    rows["length_mean"] = t_interval(by_question(table, "num_tokens").mean(axis=1))
    rows["truncated_frac"] = share_interval(by_question(table, "truncated").mean(axis=1))
    return rows


def by_question(table: pd.DataFrame, column: str) -> np.ndarray:
    """A column's values [questions, samples], questions in the order they first occur."""
    return np.stack([group[column].to_numpy(dtype=float) for _, group in table.groupby("problem_id", sort=False)])


def share_interval(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean of question values in [0, 1], with the t-interval of the values, a 0 and a 1.

    The unit is the question: more samples make its mean exact and say nothing about other questions. Agresti and Coull
    (1998) add such pseudo-values for proportions. Without them 30 wrong questions would give the interval [0, 0], and
    skewed means of few questions intervals that are too short; a percentile bootstrap has both faults.

    >>> share_interval([0.0] * 30).high  # 1/32 + 2.040 * 0.1768 / sqrt(32)
    0.0949...
    """
    wide = t_interval([*values, 0.0, 1.0])
    return replace(t_interval(values), low=max(0.0, wide.low or 0.0), high=min(1.0, wide.high or 1.0))


def cells(estimate: Estimate, digits: int) -> tuple[str, str]:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.{digits}f}", "none for one question"
    return f"{estimate.mean:.{digits}f}", f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}"


def print_responses(result: Result, show: int) -> None:
    """Prints the first sample of the first problems with the reference answers."""
    problems = {p.problem.id: p.problem for p in result.benchmark.prompts}
    for sample in [s for s in result.evaluation.samples if s.sample_index == 0][:show]:
        verdict = "right" if sample.correct else "wrong"
        cut = ", truncated" if sample.truncated else ""
        print(f"\n--- {sample.problem_id}: {problems[sample.problem_id].problem}\n{sample.response}")
        print(f"[{verdict}: {sample.extracted!r}, reference {problems[sample.problem_id].answer!r}{cut}]")


def main() -> None:
    sys.exit(run_command(evaluate, EvaluateConfig, "evaluate", "ckpt"))


if __name__ == "__main__":
    main()
