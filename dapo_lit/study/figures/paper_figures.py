"""The paper's figures 1 to 7 drawn from these runs over any x-axis, with the paper's own curves if given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from dapo_lit.study.compare.verdicts import contrast_for
from dapo_lit.study.figures.curve_figures import MOST_BANDS, draw_metric, seeds_text
from dapo_lit.study.figures.drawing import Drawing
from dapo_lit.study.figures.style import (
    DASHES,
    PETROFF6,
    End,
    Look,
    draw_key,
    label_ends,
    line_key,
    looks,
    new_figure,
    text_width,
    title,
)
from dapo_lit.study.read.curves import AXES
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.read.runs import Runs

PAPER_AXIS = "gradient_step"
"""The paper's x-axes count gradient steps."""


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper: its panels, the arms that show it, and its own curves in paper_curves.csv."""

    number: str
    about: str
    metrics: tuple[str, ...]
    """`{bench}` and `{k}` stand for the first benchmark and its samples."""
    technique: str | None = None
    """Drawn with and without this technique; None: every arm."""
    curves: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Axes that are shown in addition to the first one, not folded away."""


FIGURES = (
    PaperFigure(
        "1", "evaluation", ("eval/{bench}/avg@{k}", "eval/{bench}/pass@{k}", "eval/{bench}/cons@{k}"), None, ("fig1",)
    ),
    PaperFigure("2", "clip-higher", ("eval/{bench}/avg@{k}", "rollout/entropy"), "clip_higher", ("fig2a", "fig2b")),
    PaperFigure("3a", "up-clipped tokens", ("clip/high_prob_mean", "clip/high_prob_max"), None, ("fig3a",)),
    PaperFigure("3b", "prompts that are all correct", ("rollout/groups_all_correct_frac",), None, ("fig3b",)),
    PaperFigure(
        "4", "token-level loss", ("rollout/entropy", "rollout/length_mean"), "token_level_loss", ("fig4a", "fig4b")
    ),
    PaperFigure(
        "5", "overlong filtering", ("eval/{bench}/avg@{k}", "rollout/entropy"), "overlong_filtering", ("fig5a", "fig5b")
    ),
    PaperFigure(
        "6", "dynamic sampling", ("eval/{bench}/avg@{k}",), "dynamic_sampling", ("fig6",), ("tokens_generated",)
    ),
    PaperFigure(
        "7",
        "training of every arm, over all completions (rollout) and over those trained on (batch, policy)",
        (
            "rollout/length_mean",
            "rollout/reward",
            "rollout/entropy",
            "rollout/prob_mean",
            "batch/length_mean",
            "batch/reward",
            "policy/entropy",
            "policy/prob_mean",
        ),
        None,
        ("fig7a", "fig7b", "fig7c", "fig7d"),
    ),
)


def paper_figures(
    runs: Runs, axes: Sequence[str], paper: pd.DataFrame | None = None
) -> tuple[list[Drawing], list[str]]:
    """Every figure that these runs can show, over the given axes; the first axis open, the others folded.

    Args:
        paper: the paper's own curves (figure, metric, series, gradient_step, value).

    Returns:
        The drawings, and a sentence for each figure that cannot be drawn.
    """
    seen, drawings, absent = runs.usable, list[Drawing](), list[str]()
    look = looks(seen.arms)
    smooth = max(1, int(max(run.metrics.index.max() for run in seen)) // 20)
    for figure in FIGURES:
        keys, arms = _keys(figure, seen), _arms(figure, seen)
        if not keys or not arms:
            reason = f"no two arms differ only in {figure.technique}" if not arms else "its metrics were not logged"
            absent.append(f"Figure {figure.number} ({figure.about}): {reason}")
            continue
        few = _fewer(arms)
        chosen = look if figure.technique is None else looks(few)
        for axis in axes:
            theirs = None
            if paper is not None and axis == PAPER_AXIS:
                theirs = paper[paper["figure"].isin(figure.curves)]
            drawing = _draw(figure, seen, keys, few, chosen, axis, smooth, theirs)
            if drawing is None:
                continue
            folded = axis not in (axes[0], *figure.also)
            drawings.append(drawing if folded else replace(drawing, folded=""))
        if len(few) < len(arms):
            absent.append(f"Figure {figure.number} shows {len(few)} of {len(arms)} arms; the tables have all")
    return drawings, absent


def read_paper_curves(file: Path | None) -> pd.DataFrame | None:
    """The paper's curves, None where there is no such file."""
    return pd.read_csv(file) if file is not None and file.is_file() else None


def _keys(figure: PaperFigure, runs: Runs) -> list[str]:
    """The figure's metrics that a run logged."""
    logged = runs.keys()
    first = next((key for key in logged if key.startswith("eval/") and "/avg@" in key), "eval/none/avg@0")
    bench, k = first.split("/")[1], first.rpartition("@")[2]
    wanted = [metric.format(bench=bench, k=k) for metric in figure.metrics]
    return [key for key in wanted if any(len(run.series(key)) for run in runs)]


def _arms(figure: PaperFigure, runs: Runs) -> list[str]:
    """The arms that the figure compares: all, or those with and without its technique."""
    if figure.technique is None:
        without = [arm for arm in runs.arms if not runs.of(arm)[0].techniques.get("clip_higher", True)]
        return without if figure.number == "3a" else list(runs.arms)
    contrast = contrast_for(figure.technique, runs)
    pair = contrast.pair if contrast else None
    return [arm for arm in runs.arms if pair and arm in pair]


def _fewer(arms: Sequence[str], most: int = 8) -> list[str]:
    """At most eight lines fit a panel: the references first, then as listed."""
    references = [arm for arm in ("dapo", "naive_grpo") if arm in arms]
    chosen = [*references, *(arm for arm in arms if arm not in references)][:most]
    return [arm for arm in arms if arm in chosen]


def _draw(
    figure: PaperFigure,
    runs: Runs,
    keys: Sequence[str],
    arms: Sequence[str],
    look: dict[str, Look],
    axis: str,
    smooth: int,
    theirs: pd.DataFrame | None,
) -> Drawing | None:
    """One figure over one axis, folded; None where no arm has a curve over it."""
    panels = list(theirs.groupby("metric", sort=False)) if theirs is not None else []
    columns = 1 if len(keys) + len(panels) == 1 else 2
    rows = -(-(len(keys) + len(panels)) // columns)
    names = line_key(arms, look)
    room = text_width([*names.at_end.values(), *(str(s) for _, part in panels for s in part["series"].unique())])
    canvas, grid = new_figure(rows, columns, labels=min(room, 1.2), below=names.height)
    tables = []
    for axes, key in zip(grid.flat, keys, strict=False):
        window = 1 if key.startswith("eval/") else smooth
        tables.append(draw_metric(axes, runs, key, axis, arms, look, names, window))
        title(axes, key, unit(key) if unit(key) != "points" else "share", AXES[axis])
    for axes, (name, part) in zip(list(grid.flat)[len(keys) :], panels, strict=False):
        _draw_theirs(axes, str(name), part)
    for axes in list(grid.flat)[len(keys) + len(panels) :]:
        axes.remove()
    data = pd.concat(tables, ignore_index=True)
    if data.empty:
        return None
    draw_key(canvas, names)
    heading = f"Figure {figure.number} by {AXES[axis]}" + (", with the paper's own curves" if panels else "")
    caption = _caption(figure, runs, arms, axis, smooth, bool(panels))
    return Drawing(f"fig{figure.number}_{axis}", caption, _in_words(data), canvas, data, heading)


def _draw_theirs(axes: Axes, name: str, part: pd.DataFrame) -> None:
    """A panel of the paper's own curves, shaded, on its own scales."""
    ends: list[End] = []
    for place, (series, points) in enumerate(part.groupby("series", sort=False)):
        axes.plot(points["gradient_step"], points["value"], color=PETROFF6[place], ls=DASHES[place], lw=1)
        last = points.iloc[-1]
        ends.append((str(series), float(last["gradient_step"]), float(last["value"]), PETROFF6[place]))
    title(axes, f"paper (32B): {name}", "", "gradient step")
    axes.set_facecolor("#f4f4f6")
    label_ends(axes, ends)


def _caption(figure: PaperFigure, runs: Runs, arms: Sequence[str], axis: str, smooth: int, overlaid: bool) -> str:
    smoothing = f"training metrics as a moving mean of {smooth} steps" if smooth > 1 else "not smoothed"
    interval = "95 % t-interval over seeds"
    band = f"band: {interval}" if len(arms) <= MOST_BANDS else f"the {interval} is in the CSV"
    text = (
        f"As the paper's Figure {figure.number} ({figure.about}), by {AXES[axis]}: "
        f"{seeds_text(runs, arms)}, a thin line each; bold: mean; {band}; {smoothing}."
    )
    return text + (" Shaded panels: the paper's own curves, another model and scale." if overlaid else "")


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
