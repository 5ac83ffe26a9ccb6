"""The price of dynamic sampling (experiments/price_of_sampling): held-out accuracy along the generated tokens, as a
table, a figure and the marks at which one way of using unmixed groups passes another. A task is shown once all of its
cells are packed."""

from functools import cache

import numpy as np
from cells import EXPERIMENTS, cells, on_accuracy, points
from curves import MASKED, REFILLED
from matplotlib.figure import Figure

from ablations.compare.contrasts import difference
from ablations.compare.equal_budget import at_marks
from ablations.compare.statistics import Estimate
from ablations.figures.style import FAINT, PETROFF6, Drawing, new_figure, title
from ablations.read.curves import measured
from ablations.read.outcomes import primary_metric

STUDY = "price_of_sampling"
FIGURE = EXPERIMENTS.parent / "docs" / "figures" / "price_of_sampling.svg"
TASKS = {"sums": "joint", "programs": "programs", "parity": "parity", "calculator": "calculator"}
"""As a reader knows it -> its folder."""
AGAINST_MASKED = difference("", "", None, *(next(iter(one.weights)) for one in (REFILLED, MASKED)))
SHOWN = {"refilled minus off": REFILLED, "masked minus off": MASKED, "refilled minus masked": AGAINST_MASKED}
COLOURS = dict(zip(SHOWN, PETROFF6, strict=False))


def complete() -> dict[str, str]:
    """The tasks that every registered cell has run of -> the folder below experiments/."""
    folders = {task: f"{STUDY}/{name}" for task, name in TASKS.items()}
    return {task: one for task, one in folders.items() if (EXPERIMENTS / one / "runs" / "cells.parquet").is_file()}


@cache
def along(folder: str, name: str) -> dict[int, Estimate]:
    """Tokens -> a difference over base policies: at the marks that all runs passed, and at their end (registered)."""
    runs, contrast = cells(folder), SHOWN[name]
    config = next(iter(runs)).config
    ends = on_accuracy(folder, contrast, one_set=True).estimate
    marks = tuple(config["evaluation"]["at_tokens"])
    found = dict(at_marks(runs, contrast, primary_metric(runs), marks))
    return found | {config["budget"]["tokens_generated"]: ends}


def table() -> str:
    """Markdown: the three differences in held-out accuracy after each mark and at the end, in points."""
    parts = complete()
    marks = [*along(next(iter(parts.values())), next(iter(SHOWN)))]
    heads = [f"{mark // 1000}k" for mark in marks]
    lines = [f"| task | | {' | '.join(heads)} (registered) | positive from |", "|---" * (3 + len(heads)) + "|"]
    for task, folder in parts.items():
        for name in SHOWN:
            found = along(folder, name)
            texts = " | ".join(points(found[mark]) if mark in found else "" for mark in marks)
            lines.append(f"| {task} | {name} | {texts} | {passes(folder, name)} |")
    return "\n".join(lines)


def spent() -> str:
    """Markdown: tokens that an arm's runs had generated when they were evaluated for a mark, and at their end."""
    parts = complete()
    arms = dict(zip(("refilled", "masked", "off"), (*AGAINST_MASKED.weights, *list(REFILLED.weights)[1:]), strict=True))
    config = next(iter(cells(next(iter(parts.values()))))).config
    marks = config["evaluation"]["at_tokens"]
    lines = [f"| task | | {' | '.join(f'{mark // 1000}k' for mark in marks)} | end |", "|---" * (3 + len(marks)) + "|"]
    for task, folder in parts.items():
        for words, arm in arms.items():
            runs = cells(folder)
            places = [measured(run, primary_metric(runs), "tokens_generated").places for run in runs.of(arm)]
            at = [np.mean([place[place >= mark][0] for place in places]) for mark in marks]
            texts = [f"{tokens / 1000:.0f}k" for tokens in (*at, np.mean([place[-1] for place in places]))]
            lines.append(f"| {task} | {words} | {' | '.join(texts)} |")
    return "\n".join(lines)


def passes(folder: str, name: str) -> str:
    """The first mark at which a difference is positive and stays so at every later one."""
    found = [*along(folder, name).items()]
    first = next((place for place in range(len(found)) if all(gap.mean > 0 for _, gap in found[place:])), None)
    return "never" if first is None else f"{found[first][0] // 1000}k"


def drawn() -> Figure:
    """A panel a task: refilled and masked minus off along the tokens, with 95 % intervals over base policies."""
    parts = complete()
    figure, grid = new_figure(-(-len(parts) // 2), min(2, len(parts)), width=6.4, height=2.4 * -(-len(parts) // 2))
    for axes, (task, folder) in zip(grid.flat, parts.items(), strict=False):
        for name in ("refilled minus off", "masked minus off"):
            found = along(folder, name)
            ends = np.array([[gap.mean, gap.low, gap.high] for gap in found.values()]).T * 100
            axes.plot([*found], ends[0], "o-", ms=4, color=COLOURS[name], label=name)
            axes.fill_between([*found], ends[1], ends[2], color=COLOURS[name], alpha=0.18, lw=0)
        axes.axhline(0, color=FAINT, lw=1)
        title(axes, task, "held-out accuracy, points", "generated tokens")
        axes.set_xscale("log")
        axes.set_xticks([*found], [f"{mark // 1000}k" for mark in found])
        axes.minorticks_off()
    for axes in grid.flat[len(parts) :]:
        axes.set_axis_off()
    grid.flat[0].legend(loc="best", fontsize=6.5, frameon=False)
    return figure


def figure() -> str:
    """The figure as SVG."""
    return Drawing("price_of_sampling", "", "", drawn()).svg
