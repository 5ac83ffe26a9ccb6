"""Evaluates models on benchmarks.

    python -m dapo_lit.evaluate policy=smollm2_135m benchmark=gsm8k_test limit=20 n=4      one model
    python -m dapo_lit.evaluate ckpt=runs/single/dapo/seed_0 benchmark=chain_sum_heldout   a run's newest checkpoint
    python -m dapo_lit.evaluate 'compare=[A,B]' benchmark=aime_2024                        two, question by question

Prints a table with intervals over questions and writes the samples to a folder. Run again after a kill, or with more
problems or samples, it continues from the samples in the folder. Left out: several GPUs.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD

from dapo_lit.cli.command import run_command
from dapo_lit.config import ConfigError
from dapo_lit.config.commands import EvaluateConfig
from dapo_lit.evaluation.voting import consensus
from dapo_lit.rollout.reflection import MARK, WORDS, reflects
from dapo_lit.screen import print_table
from dapo_lit.study.compare.questions import by_question, compare_questions, share_interval, summary
from dapo_lit.study.compare.statistics import Estimate

if TYPE_CHECKING:
    from dapo_lit.evaluation.resumable import Result


METHOD = "95 % t-intervals over questions, one always right and one always wrong question added (docs/evaluation.md)"


def evaluate(config: EvaluateConfig, overrides: list[str]) -> None:
    """Evaluates one model, or two and their differences."""
    import torch

    from dapo_lit.evaluation.model_source import open_model
    from dapo_lit.evaluation.resumable import evaluate_model

    torch.set_num_threads(config.threads)
    wanted = config.compare or (config.ckpt,)
    results = []
    for where in wanted:
        results.append(evaluate_model(config, open_model(where, config.policy, config.device)))
        report(results[-1], config.show)
    if len(results) == 2:
        report_comparison(*results)


def report(result: Result, show: int) -> None:
    """Prints the table of one model and some responses."""
    import pandas as pd

    name, samples = result.benchmark.settings.name, result.evaluation.samples
    votes = [counts for counts in result.evaluation.vote_counts if counts.num_samples]
    fewest = min(counts.num_samples for counts in votes)  # with a verdict: the tables want as many of each question
    table = pd.DataFrame([asdict(s) for s in samples if not s.missing])
    table = table.groupby("problem_id", sort=False).head(fewest).reset_index(drop=True)
    rows = summary(table, list(map(consensus, votes)))
    pattern = MARK if result.benchmark.settings.source == "chain_sum" else WORDS
    table["reflects"] = [reflects(text, pattern) for text in table["response"]]
    rows["reflection_frac"] = share_interval(by_question(table, "reflects").mean(axis=1))
    questions = len(result.evaluation.vote_counts)
    print(f"\n{result.label} on {name}: {questions} questions x {result.evaluation.k} samples")
    lines = [(key, *cells(estimate, 1 if key == "length_mean" else 3)) for key, estimate in rows.items()]
    print_table(("", "estimate", "95 % interval"), lines)
    print(METHOD)
    for correct, word in ((True, "right"), (False, "wrong")):
        some = table[table["correct"] == correct]
        if len(some):
            silent = f", {some['extracted'].isna().sum()} without an answer" if not correct else ""
            print(f"{word} responses: {len(some)}{silent}, reflecting {some['reflects'].mean():.3f}")
    if missing := [s for s in samples if s.missing]:
        late = sum(s.timed_out for s in missing)
        print(
            f"{len(missing)} responses have no verdict ({late} late, {len(missing) - late} failed) and are left out: "
            f"the table has {fewest} of each question"
        )
    print_responses(result, show)
    print(f"samples {result.folder / 'samples.parquet'}")


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


def report_comparison(first: Result, second: Result) -> None:
    """Prints the second minus the first on the same questions, and writes the differences by question."""
    import pandas as pd

    tables = [pd.DataFrame([asdict(s) for s in r.evaluation.samples]) for r in (first, second)]
    if first.benchmark.sampling != second.benchmark.sampling:
        print("the response limits differ because the contexts do; this may explain part of the difference")
    ids = [list(dict.fromkeys(table["problem_id"])) for table in tables]
    if ids[0] != ids[1]:
        raise ConfigError("the two evaluations are on different questions")
    k = first.evaluation.k
    means = [by_question(table, "correct").mean(axis=1) for table in tables]
    votes = [list(map(consensus, r.evaluation.vote_counts)) for r in (first, second)]
    rows = {f"avg@{k}": compare_questions(*means), f"cons@{k}": compare_questions(*votes)}
    rows["truncated_frac"] = compare_questions(*(by_question(t, "truncated").mean(axis=1) for t in tables))
    print(f"\n{second.label} minus {first.label}, paired by question")
    lines = [
        (key, *cells(paired.difference, 3), f"{paired.better}", f"{paired.worse}", f"{paired.equal}", f"{paired.p:.3g}")
        for key, paired in rows.items()
    ]
    columns = ("", "difference", "95 % interval", "better", "worse", "equal", "p")
    print_table(columns, lines, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)  # fits into 80 columns
    print("95 % t-intervals of paired differences; p: sign flips over questions (docs/evaluation.md)")
    by_problem = pd.DataFrame({"problem_id": ids[0], first.folder.name: means[0], second.folder.name: means[1]})
    by_problem["difference"] = means[1] - means[0]
    file = second.folder / f"against_{first.folder.name}.csv"
    by_problem.sort_values("difference", kind="stable").to_csv(file, index=False)
    print(f"questions {file}")


def main() -> None:
    sys.exit(run_command(evaluate, EvaluateConfig, "evaluate", "ckpt"))


if __name__ == "__main__":
    main()
