"""How much of the spread is the evaluation's: by arm and by comparison, and what the evaluations cost."""

from collections.abc import Mapping

from dapo_lit.study.compare.questions import PairedLevels, error_parts, paired_levels, score_array
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.read.runs import Runs, StudyError
from dapo_lit.study.report.document import Part, Table
from dapo_lit.study.report.results import Results
from dapo_lit.study.report.sentences import interval


def evaluation_section(results: Results) -> list[Part]:
    """Nothing unless the primary metric is of a benchmark whose samples were recorded."""
    if not results.metric.startswith("eval/"):
        return []
    benchmark = results.metric.split("/")[1]
    return _by_arm(results, benchmark) + _by_comparison(results, benchmark)


def _by_comparison(results: Results, benchmark: str) -> list[Part]:
    """Each comparison of two arms with both levels of uncertainty, and the evaluation's share of its spread."""
    key, rows = results.metric, []
    for result in results.of(results.family):
        pair, seeds = result.contrast.pair, dict(zip(result.seeds, result.bases, strict=True))
        found = levels(results.runs, pair, seeds, benchmark) if pair else None
        if found is not None:
            share = "–" if found.evaluation_share is None else f"{found.evaluation_share:.0%}"
            rows.append([result.contrast.label, interval(key, found.seeds), interval(key, found.both), share])
    if not rows:
        return []
    cost = evaluation_cost(results.runs)
    caption = (
        f"Differences in the last accuracy on {benchmark} ({unit(key)}): for these questions, and for others of "
        "the kind as well (two levels). Last column: share of the variance between pairs that comes from sampling the "
        "answers of the last evaluation."
        + ("" if cost is None else f" All evaluations took {cost:.0%} of the runs' time.")
    )
    return [Table("levels", caption, ["comparison", "over seeds", "over seeds and questions", "evaluation"], rows)]


def levels(runs: Runs, pair: tuple[str, str], base_of: Mapping[int, str], benchmark: str) -> PairedLevels | None:
    """Both levels of a difference of two arms at these seeds; None where their samples were not recorded alike."""
    if len(base_of) < 2:
        return None
    cells = {(run.arm, run.seed): run for run in runs.usable}
    try:
        treated, control = (score_array([cells[arm, seed].evaluation(benchmark) for seed in base_of]) for arm in pair)
        return paired_levels(treated, control, list(base_of.values()))
    except (ValueError, StudyError):
        return None


def evaluation_cost(runs: Runs) -> float | None:
    """Share of the runs' time that evaluations took; None for runs that did not record it."""
    spent = [(float(run.series("time/evaluate_s").sum()), float(run.series("wall_s").max())) for run in runs.usable]
    evaluating, training = (sum(column) for column in zip(*spent, strict=True))
    return evaluating / (evaluating + training) if evaluating else None


def _by_arm(results: Results, benchmark: str) -> list[Part]:
    """The parts of the standard error of a benchmark's accuracy, where samples of its questions were recorded."""
    rows = []
    for arm in results.runs.usable.arms:
        seen = [run for run in results.runs.of(arm) if run.usable and benchmark in run.benchmarks]
        try:
            parts = error_parts(score_array([run.evaluation(benchmark) for run in seen]))
        except (ValueError, StudyError) as reason:
            rows.append([arm, "–", "–", "–", str(reason)])
            continue
        cells = [amount(results.metric, value) for value in (parts.seeds, parts.questions, parts.sampling)]
        size = f"{parts.num_seeds} seeds, {parts.num_questions} questions, {parts.num_samples} answers each"
        rows.append([arm, *cells, size])
    if not rows or (all(row[1] == "–" for row in rows) and len(results.runs.usable) > 1):
        return []
    caption = (
        f"Standard errors of the last accuracy on {benchmark} (points) by source: training seeds (what the intervals "
        "here show), questions (another set of such questions; more seeds do not shrink it), sampling of answers."
    )
    return [Table("question_errors", caption, ["arm", "seeds", "questions", "sampling", "from"], rows)]
