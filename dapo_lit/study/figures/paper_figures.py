"""The paper's figures 1 to 7 drawn from these runs over any x-axis, with the paper's own curves in the same axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dapo_lit.study.compare.contrasts import Contrast, contrasts
from dapo_lit.study.figures.curve_figures import MOST_BANDS, draw_metric, seeds_text
from dapo_lit.study.figures.drawing import Drawing
from dapo_lit.study.figures.style import (
    COLUMN_IN,
    FAINT,
    PAGE_IN,
    PAPERS,
    WITHOUT,
    Key,
    Look,
    draw_key,
    line_key,
    looks,
    new_figure,
    technique_look,
    text_width,
    title,
)
from dapo_lit.study.read.curves import AXES
from dapo_lit.study.read.metric_words import in_words
from dapo_lit.study.read.outcomes import amount, is_share, unit
from dapo_lit.study.read.runs import Runs

PAPER_CURVES = Path(__file__).with_name("paper_curves.csv")


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper: its panels, the arms that show it, and its own curves in paper_curves.csv."""

    number: str
    about: str
    panels: tuple[tuple[str, str], ...]
    """Our metric, and the paper's panel. `{bench}` and `{k}` stand for the first benchmark and its samples."""
    technique: str | None = None
    """Drawn with and without this technique; None: every arm."""
    lacks: str | None = None
    """Drawn for the arms without this technique."""
    also: tuple[str, ...] = ()
    """Axes that are drawn in addition to those asked for."""


FIGURES = (
    PaperFigure("1", "evaluation", tuple((f"eval/{{bench}}/{m}@{{k}}", f"fig1/{m}") for m in ("avg", "pass", "cons"))),
    PaperFigure("2", "clip-higher", (("eval/{bench}/avg@{k}", "fig2a"), ("rollout/entropy", "fig2b")), "clip_higher"),
    PaperFigure("3a", "up-clipped tokens", (("clip/high_prob_mean", "fig3a"),), lacks="clip_higher"),
    PaperFigure("3b", "prompts that are all correct", (("rollout/groups_all_correct_frac", "fig3b"),)),
    PaperFigure(
        "4",
        "token-level loss",
        (("rollout/entropy", "fig4a"), ("rollout/length_mean", "fig4b")),
        "token_level_loss",
    ),
    PaperFigure(
        "5",
        "overlong filtering",
        (("eval/{bench}/avg@{k}", "fig5a"), ("rollout/entropy", "fig5b")),
        "overlong_filtering",
    ),
    PaperFigure(
        "6", "dynamic sampling", (("eval/{bench}/avg@{k}", "fig6"),), "dynamic_sampling", also=("tokens_generated",)
    ),
    PaperFigure(
        "7",
        "training of every arm",
        (
            ("rollout/length_mean", "fig7a"),
            ("rollout/reward", "fig7b"),
            ("rollout/entropy", "fig7c"),
            ("rollout/prob_mean", "fig7d"),
        ),
    ),
)


def paper_figures(runs: Runs, axes: Sequence[str]) -> tuple[list[Drawing], list[str]]:
    """Every figure that these runs can show, over the given axes; the first axis open, the others folded.

    Returns:
        The drawings, and a sentence for each figure that cannot be drawn.
    """
    seen, drawings, absent = runs.usable, list[Drawing](), list[str]()
    look = looks(seen.arms)
    smooth = max(1, int(max(run.metrics.index.max() for run in seen)) // 20)
    read = pd.read_csv(PAPER_CURVES, comment="#") if axes else pd.DataFrame({"figure": []})
    theirs = {str(name): curves for name, curves in read.groupby("figure", sort=False)}
    for figure in FIGURES:
        panels, arms = _panels(figure, seen), _arms(figure, seen)
        if not panels or not arms:
            none = f"no arm lacks {figure.lacks}" if figure.lacks else f"no two arms differ only in {figure.technique}"
            reason = none if not arms else "its metrics were not logged"
            absent.append(f"Figure {figure.number} ({figure.about}): {reason}")
            continue
        few = _fewer(arms)
        chosen = look if figure.technique is None else _with_and_without(figure.technique, few, seen)
        for axis in dict.fromkeys([*axes, *figure.also] if axes else []):
            drawing = _draw(figure, seen, panels, few, chosen, axis, smooth, theirs)
            if drawing is None:
                continue
            folded = axis not in (axes[0], *figure.also)
            drawings.append(drawing if folded else replace(drawing, folded=""))
        if len(few) < len(arms):
            absent.append(f"Figure {figure.number} shows {len(few)} of {len(arms)} arms; the tables have all")
    return drawings, absent


def _with_and_without(technique: str, arms: Sequence[str], runs: Runs) -> dict[str, Look]:
    """The technique's own look for the arm that has it, grey for the other."""
    on = {arm: runs.of(arm)[0].techniques.get(technique, False) for arm in arms}
    return {arm: technique_look(technique) if on[arm] else WITHOUT for arm in arms}


def _panels(figure: PaperFigure, runs: Runs) -> list[tuple[str, str]]:
    """The figure's metrics that a run logged, each with the paper's panel."""
    logged = runs.keys()
    first = next((key for key in logged if key.startswith("eval/") and "/avg@" in key), "eval/none/avg@0")
    bench, k = first.split("/")[1], first.rpartition("@")[2]
    wanted = [(metric.format(bench=bench, k=k), theirs) for metric, theirs in figure.panels]
    return [(key, theirs) for key, theirs in wanted if any(len(run.series(key)) for run in runs)]


def _arms(figure: PaperFigure, runs: Runs) -> list[str]:
    """The arms that the figure compares: all, those that lack a technique, or those with and without its technique."""
    if figure.lacks is not None:
        return [arm for arm in runs.arms if not runs.of(arm)[0].techniques.get(figure.lacks, True)]
    if figure.technique is None:
        return list(runs.arms)
    contrast = _contrast(figure.technique, runs)
    pair = contrast.pair if contrast else None
    return [arm for arm in runs.arms if pair and arm in pair]


def _contrast(technique: str, runs: Runs) -> Contrast | None:
    """The comparison that shows a technique: left out of DAPO, else its main effect, its rung, alone on GRPO."""
    found = [c for c in contrasts(runs.arms) if c.technique == technique and "Shapley" not in c.family]
    order = ("left out of DAPO", "main effects", "ladder", "alone on GRPO")
    return min(found, key=lambda c: order.index(c.family) if c.family in order else 9, default=None)


def _fewer(arms: Sequence[str], most: int = 8) -> list[str]:
    """At most eight lines fit a panel: the references first, then as listed."""
    references = [arm for arm in ("dapo", "naive_grpo") if arm in arms]
    chosen = [*references, *(arm for arm in arms if arm not in references)][:most]
    return [arm for arm in arms if arm in chosen]


def _draw(
    figure: PaperFigure,
    runs: Runs,
    panels: Sequence[tuple[str, str]],
    arms: Sequence[str],
    look: Mapping[str, Look],
    axis: str,
    smooth: int,
    theirs: Mapping[str, pd.DataFrame],
) -> Drawing | None:
    """One figure over one axis, folded; None where no arm has a curve over it."""
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    names = line_key(arms, look)
    if figure.technique:
        names = Key({arm: "without" if look[arm] == WITHOUT else "with" for arm in arms}, ())
    room = text_width(list(names.at_end.values()))
    width = COLUMN_IN if columns == 1 and not names.below else PAGE_IN
    canvas, grid = new_figure(rows, columns, width=width, labels=min(room, 1.2), below=names.height)
    tables = []
    for axes, (key, theirs_of) in zip(grid.flat, panels, strict=False):
        window = 1 if key.startswith("eval/") else smooth
        tables.append(draw_metric(axes, runs, key, axis, arms, look, names, window, shaded=False))
        title(axes, in_words(key), "share" if is_share(key) else unit(key), AXES[axis])
        if theirs_of in theirs and len(tables[-1]):
            _overlay(axes, theirs[theirs_of])
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    data = pd.concat(tables, ignore_index=True)
    if data.empty:
        return None
    draw_key(canvas, names)
    caption = _caption(figure, runs, arms, axis, smooth)
    heading = f"Figure {figure.number} by {AXES[axis]}"
    return Drawing(f"fig{figure.number}_{axis}", caption, _in_words(data), canvas, data, heading)


def _overlay(axes: Axes, curves: pd.DataFrame) -> None:
    """The paper's own curves over the whole panel in pale grey, with a grey scale of their own at the right."""
    own = axes.figure.add_axes(axes.get_position().bounds, frameon=False, zorder=axes.get_zorder() - 1)
    axes.patch.set_visible(False)
    for series, points in curves.groupby("series", sort=False):
        dash = ":" if str(series).startswith("w/o") else "-"
        own.plot(points["gradient_step"], points["value"], color=PAPERS, ls=dash, lw=1.3)
    own.set_xlim(0, curves["gradient_step"].max())
    own.set_xticks([])
    own.grid(False)
    own.yaxis.tick_right()
    own.yaxis.set_major_locator(MaxNLocator(3))
    own.tick_params(axis="y", direction="in", length=2, pad=-3, labelsize=6.5, colors=PAPERS, labelcolor=FAINT)
    for label in own.get_yticklabels():
        label.set_horizontalalignment("right")


def _caption(figure: PaperFigure, runs: Runs, arms: Sequence[str], axis: str, smooth: int) -> str:
    smoothing = f"training metrics as a moving mean of {smooth} steps" if smooth > 1 else "not smoothed"
    seeds = ", a thin line each" if len(arms) <= MOST_BANDS else ""
    compared = f" ({' and '.join(arms)})" if figure.technique else ""
    without = ", dotted without it" if figure.technique else ""
    return (
        f"As the paper's Figure {figure.number} ({figure.about}), by {AXES[axis]}{compared}: "
        f"{seeds_text(runs, arms)}{seeds}; bold: mean (its interval is in the CSV); {smoothing}. Grey, on the grey "
        f"scale at the right: the paper's own run over its whole length{without}, read off its figures (32B, AIME: "
        "another model and scale)."
    )


def _in_words(data: pd.DataFrame) -> str:
    """The ends of all curves as text."""
    parts = []
    for key, table in data.groupby("metric", sort=False):
        values = []
        for arm, row in table.groupby("arm", sort=False).tail(1).set_index("arm").iterrows():
            mean, low, high = (amount(str(key), float(row[column])) for column in ("mean", "low", "high"))
            values.append(f"{arm} {mean}" + (f" [{low}, {high}]" if pd.notna(row["low"]) else ""))
        parts.append(f"{key} at the end: {', '.join(values)}")
    return ". ".join(parts) + "."
