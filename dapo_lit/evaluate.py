"""Evaluates models on benchmarks.

    python -m dapo_lit.evaluate policy=smollm2_135m benchmark=gsm8k_test limit=20 n=4      one model
    python -m dapo_lit.evaluate ckpt=runs/single/dapo/seed_0 benchmark=chain_sum_heldout   a run's newest checkpoint
    python -m dapo_lit.evaluate 'compare=[A,B]' benchmark=aime_2024                        two, question by question
    python -m dapo_lit.evaluate reflection_of=runs/single/dapo/seed_0                      reflection in its rollouts
    python -m dapo_lit.evaluate rules_of=runs/single/dapo/seed_0 'other_rules=[dapo,sympy]'  its rewards by other rules

Prints a table with intervals over questions and writes samples, curves and a figure to a folder. Run again after a
kill, or with more problems or samples, it continues from the samples in the folder. Left out: several GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD

from dapo_lit.cli.command import run_command
from dapo_lit.config import ConfigError
from dapo_lit.config.commands import EvaluateConfig
from dapo_lit.config.shipped import choice, known_choices
from dapo_lit.evaluation.voting import consensus_curve
from dapo_lit.rollout.reflection import ReflectionPatterns
from dapo_lit.screen import print_table
from dapo_lit.study.compare.questions import compare_questions, share_interval
from dapo_lit.study.compare.statistics import Estimate
from math_answers.extraction import Extraction
from math_answers.rules import Rule

if TYPE_CHECKING:
    import pandas as pd

    from dapo_lit.evaluation.resumable import Result


DIFFERENCES_SHOWN = 30
"""Pairs of answers that are printed where rules differ; rules.csv has all."""
METHOD = "95 % t-intervals over questions, one always right and one always wrong question added (docs/evaluation.md)"


def evaluate(config: EvaluateConfig, overrides: list[str]) -> None:
    """Runs the mode that the config selects."""
    import torch

    from dapo_lit.evaluation.model_source import open_model, run_config, run_of
    from dapo_lit.evaluation.resumable import evaluate_model

    torch.set_num_threads(config.threads)
    try:
        patterns = ReflectionPatterns(config.reflection.patterns)
        if config.reflection_of:
            own = run_config(run_of(Path(config.reflection_of))).reflection.patterns
            check_patterns(own, config.reflection.patterns)
            report_reflection(Path(config.reflection_of), ReflectionPatterns({**config.reflection.patterns, **own}))
            return
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config.rules_of:
        report_rules_of(Path(config.rules_of), config)
        return
    wanted = config.compare or (config.ckpt,)
    results = []
    for where in wanted:
        results.append(evaluate_model(config, open_model(where, config.policy, config.device)))
        report(results[-1], patterns, config.show)
        if config.other_rules:
            report_rules(results[-1], config)
    if len(results) == 2:
        report_comparison(*results)


def check_patterns(own: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuses patterns of a run that neither this package nor the command line has: one could run for ever."""
    shipped = [choice("reflection", name)["patterns"] for name in known_choices("reflection")]
    known = {item for patterns in (given, *shipped) for item in patterns.items()}
    for name, pattern in own.items():
        if (name, pattern) not in known:
            raise ConfigError(
                f"reflection_of: the run's config.yaml has a pattern of its own, {name}: {pattern!r}, and a run folder "
                f"is data: read it, and give it on the command line, '+reflection.patterns.{name}=...'"
            )


def report(result: Result, patterns: ReflectionPatterns, show: int) -> None:
    """Prints the table of one model and some responses; writes its curves as CSV and figure."""
    import pandas as pd

    from dapo_lit.study.figures.benchmark_curves import budget_curve, by_question, plot_curves, samples_curve, summary

    name, samples = result.benchmark.settings.name, result.evaluation.samples
    votes = [counts for counts in result.evaluation.vote_counts if counts.num_samples]
    fewest = min(counts.num_samples for counts in votes)  # with a verdict: the tables want as many of each question
    table = pd.DataFrame([asdict(s) for s in samples if not s.missing])
    table = table.groupby("problem_id", sort=False).head(fewest).reset_index(drop=True)
    consensus = [consensus_curve(counts)[:fewest] for counts in votes]
    by_samples, by_budget = samples_curve(table, consensus), budget_curve(table)
    by_samples.to_csv(result.folder / "by_samples.csv", index=False)
    by_budget.to_csv(result.folder / "by_budget.csv", index=False)
    figure = plot_curves(by_samples, by_budget, name, result.folder / "curves")[0]

    rows = summary(table, consensus)
    table["reflects"] = [patterns.reflects(text) for text in table["response"]]
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
    print(f"samples {result.folder / 'samples.parquet'}\nfigure  {figure}")


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


def report_rules(result: Result, config: EvaluateConfig) -> None:
    """Scores the same responses by the benchmark's rule and by `other_rules`."""
    import pandas as pd

    answers = {p.problem.id: p.problem.answer for p in result.benchmark.prompts}
    rows = [
        (f"{s.problem_id}, sample {s.sample_index}", s.response, answers[s.problem_id])
        for s in result.evaluation.samples
    ]
    answered = pd.DataFrame(rows, columns=["place", "response", "answer"])
    settings = result.benchmark.settings
    compare_rules(answered, settings.rule, settings.extraction, result.folder / "rules.csv", config)


def report_rules_of(place: Path, config: EvaluateConfig) -> None:
    """Scores the completions that a run recorded by the run's rule and by `other_rules`."""
    from dapo_lit.evaluation.model_source import run_config, run_of
    from dapo_lit.evaluation.recorded_rollouts import recorded_rollouts

    run = run_of(place)
    reward = run_config(run).reward
    answered = recorded_rollouts(run, ["problem_id", "sample_index", "response", "answer"])
    answered["place"] = [f"step {r.step}, {r.problem_id}, sample {r.sample_index}" for r in answered.itertuples()]
    compare_rules(answered, reward.rule, reward.extraction, run / "figures" / "rules.csv", config)


def compare_rules(
    answered: pd.DataFrame, own: Rule, extraction: Extraction, file: Path, config: EvaluateConfig
) -> None:
    """Prints accuracy by rule and where the rules differ; writes all verdicts to `file`."""
    from dapo_lit.evaluation.extra_rules import rule_differences, verdicts

    rules = tuple(dict.fromkeys((own, *config.other_rules)))
    table = verdicts(answered, rules, extraction, config.deadline_s, config.workers)
    file.parent.mkdir(exist_ok=True)
    table.to_csv(file, index=False)
    differences = rule_differences(table, rules, DIFFERENCES_SHOWN)
    print(f"\nthe same responses by {len(rules)} rules\n{differences}\nverdicts {file}")


def report_comparison(first: Result, second: Result) -> None:
    """Prints the second minus the first on the same questions, and writes the differences by question."""
    import pandas as pd

    from dapo_lit.study.figures.benchmark_curves import by_question

    tables = [pd.DataFrame([asdict(s) for s in r.evaluation.samples]) for r in (first, second)]
    if first.benchmark.sampling != second.benchmark.sampling:
        print("the response limits differ because the contexts do; this may explain part of the difference")
    ids = [list(dict.fromkeys(table["problem_id"])) for table in tables]
    if ids[0] != ids[1]:
        raise ConfigError("the two evaluations are on different questions")
    k = first.evaluation.k
    means = [by_question(table, "correct").mean(axis=1) for table in tables]
    votes = [[consensus_curve(b)[-1] for b in r.evaluation.vote_counts] for r in (first, second)]
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


def report_reflection(place: Path, patterns: ReflectionPatterns) -> None:
    """Reflection in the recorded rollouts of a run: rates by step and correctness, and first occurrences."""
    import pandas as pd

    from dapo_lit.evaluation.model_source import run_of
    from dapo_lit.evaluation.recorded_rollouts import counted_responses, first_occurrences, reflection_by_step
    from dapo_lit.study.figures.benchmark_curves import plot_reflection

    run = run_of(place)
    responses = counted_responses(run)
    rows = reflection_by_step(responses, patterns)
    (run / "figures").mkdir(exist_ok=True)
    rows.to_csv(run / "figures" / "reflection.csv", index=False)
    figure = plot_reflection(rows, f"{run.parent.name} {run.name}", run / "figures" / "reflection")[0]
    lines = []
    for row in rows.to_dict("records"):
        shares = [row[f"reflection_frac{suffix}"] for suffix in ("", "_correct", "_wrong")]
        shown = ["-" if pd.isna(share) else f"{share:.3f}" for share in shares]
        lines.append((f"{row['step']:.0f}", f"{row['responses']:.0f}", *shown))
    columns = ("step", "responses", "reflecting", "of the right", "of the wrong")
    print_table(columns, lines, title=f"Reflection in {run}")
    for name, (first, words) in first_occurrences(responses, patterns).items():
        verdict = "right" if first.correct else "wrong"
        print(f"{name}: first at step {first.step} ({first.problem_id}, {verdict}): ... {words} ...")
    print(f"rates   {run / 'figures' / 'reflection.csv'}\nfigure  {figure}")


def main() -> None:
    sys.exit(run_command(evaluate, EvaluateConfig, "evaluate", "ckpt"))


if __name__ == "__main__":
    main()
