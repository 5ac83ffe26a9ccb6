"""The paper's Table 1 from the runs of a ladder: every rung with its interval, and what it adds, paired by seed."""

import pandas as pd
from matplotlib.figure import Figure

from dapo_lit.study.compare.contrasts import compare_all, contrasts
from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.designs import TECHNIQUES, ladder
from dapo_lit.study.figures.effect_figures import effects_figure, outcomes_figure
from dapo_lit.study.read.outcomes import is_share, outcome, primary_metric, scores
from dapo_lit.study.read.runs import Runs, StudyError

PAPER = dict(zip((arm.name for arm in ladder()), (30, 36, 38, 41, 42, 50), strict=True))
"""AIME 2024 avg@32 in percent, Qwen2.5-32B, one run each (arXiv 2503.14476, Table 1)."""


def table1(runs: Runs, key: str | None = None) -> pd.DataFrame:
    """A row an arm: paper, mean with its 95 % t-interval over n seeds; what the rung adds, and what it added there.

    Shares are in percent, increments in points, paired by seed.

    Args:
        key: the metric; None: the first benchmark's avg@k.
    """
    name = key or primary_metric(runs)
    table, scale = scores(runs, name), 100 if is_share(name) else 1
    rungs = [arm.name for arm in ladder()]
    rows = {}
    for arm in (a for a in [*rungs, *(a for a in runs.arms if a not in rungs)] if table.get(a)):
        mean = t_interval([scale * value for value in table[arm].values()])
        row = {"paper": PAPER.get(arm), "mean": mean.mean, "low": mean.low, "high": mean.high, "n": mean.n}
        below = rungs[rungs.index(arm) - 1] if arm in rungs[1:] else None
        seeds = sorted(table[arm].keys() & table.get(below, {}).keys()) if below else []
        if below and seeds:
            added = t_interval([scale * (table[arm][seed] - table[below][seed]) for seed in seeds])
            row |= {"adds": added.mean, "adds_low": added.low, "adds_high": added.high, "pairs": added.n}
            row["paper_adds"] = PAPER[arm] - PAPER[below]
        rows[arm] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def plot_outcomes(runs: Runs, key: str | None = None) -> Figure:
    """Every run a dot, a row an arm, with the mean and its 95 % t-interval."""
    name = key or primary_metric(runs)
    points = max(found.points for run in runs.usable if (found := outcome(run, name)))
    drawing = outcomes_figure(scores(runs, name), name, points)
    return with_caption(drawing.figure, drawing.caption)


def plot_increments(runs: Runs, key: str | None = None) -> Figure:
    """What each rung of the ladder adds: a dot a seed, the mean of the differences and its interval.

    Raises:
        StudyError: the runs hold no two rungs that follow each other.
    """
    name = key or primary_metric(runs)
    drawing = effects_figure(compare_all(contrasts(runs.arms), scores(runs, name)), name, "ladder")
    if drawing is None:
        raise StudyError(f"no rung of the ladder ({', '.join(TECHNIQUES)}) has a run below it with the same seed")
    return with_caption(drawing.figure, drawing.caption)


def with_caption(figure: Figure, text: str) -> Figure:
    """The figure with its caption below, wrapped, in room of its own."""
    width, height = figure.get_size_inches()
    lines = _wrapped(text, int(width / 0.062))
    room = 0.16 * len(lines) + 0.06
    share = height / (height + room)
    for axes in figure.axes:
        box = axes.get_position()
        axes.set_position((box.x0, 1 - share * (1 - box.y0), box.width, share * box.height))
    figure.set_size_inches(width, height + room)
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=7.5, va="bottom", ha="left")
    return figure


def _wrapped(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > columns:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
