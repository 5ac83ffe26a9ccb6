"""Dynamic sampling along the tokens that a run generates: the figure of README, and its table on docs/findings.md.

At equal steps it takes up to four times the tokens, so its gain there is one point of a curve. Sums and programs have
runs of DAPO with and without it that end at equal tokens, on two sets of base policies; parity and the calculator have
the combinations of the other techniques, with and without it, as far as all runs go.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from around import DYNAMIC
from cells import ROOT, cells, main_effects, on_accuracy, points
from matplotlib.figure import Figure

from ablations.compare.contrasts import Contrast, difference
from ablations.compare.equal_budget import at_equal_tokens, at_marks, sides
from ablations.compare.statistics import Estimate
from ablations.designs import Arm
from ablations.figures.style import FAINT, INK, PETROFF6, Drawing, new_figure, title
from ablations.read.curves import TRAINING_ACCURACY, measured, value_at
from ablations.read.outcomes import amount, primary_metric
from ablations.techniques import DAPO

FIGURE = ROOT / "docs" / "figures" / "dynamic_sampling_tokens.svg"
WITH, WITHOUT = Arm(DAPO).name, Arm(DAPO - {DYNAMIC}).name
REFILLED = difference("", "", None, WITH, WITHOUT)
MASKED = difference("", "", None, "dapo@dynamic_sampling.max_rounds=1", WITHOUT)
MARKS = (80_000, 160_000, 320_000)
PANELS = {
    "sums": ("mask_or_refill/joint", "cheaper_sampling/joint"),
    "programs": ("mask_or_refill/programs", "cheaper_sampling/programs"),
    "parity": ("factorial_half_parity",),
    "calculator": ("factorial_half_calculator",),
}
"""Task -> folders of its sets; the first is drawn thick, with its held-out accuracy, the other dashed."""
NAMES = {WITH: "with dynamic sampling", WITHOUT: "without it"}
COLOURS = {WITH: PETROFF6[0], WITHOUT: INK}


def compared(folder: str) -> Contrast:
    """With and without dynamic sampling: in DAPO, or in a factorial over all combinations of the others."""
    return main_effects(folder)[DYNAMIC] if folder.startswith("factorial") else REFILLED


@dataclass(frozen=True)
class Line:
    """Training accuracy of both sides along the tokens, as far as every run was measured; all three are [points]."""

    tokens: np.ndarray
    treated: np.ndarray
    control: np.ndarray
    gaps: tuple[Estimate, ...]
    """The paired difference, over base policies."""


@cache
def line(folder: str) -> Line:
    """The curve of a set, read at sixty places."""
    runs, contrast = cells(folder), compared(folder)
    both = sides(runs.usable, contrast)
    curves = [[[measured(run, TRAINING_ACCURACY, "tokens_generated") for run in side] for side in one] for one in both]
    each = [curve for one in curves for side in one for curve in side]
    first, last = max(curve.places[0] for curve in each), min(curve.places[-1] for curve in each)
    tokens = np.linspace(first, last, 61)[1:]
    means = [
        np.array([np.mean([[value_at(curve, place) for curve in one[side]] for one in curves]) for place in tokens])
        for side in (0, 1)
    ]
    gaps = at_equal_tokens(runs, contrast, TRAINING_ACCURACY, tuple(tokens))
    return Line(tokens, means[0], means[1], tuple(gap for _, gap in gaps))


def accuracy_after(folder: str, arm: str, mark: int) -> float | None:
    """Held-out accuracy in the evaluation after the step that passes a mark, mean over an arm's runs; None if a run has
    none there."""
    runs = cells(folder)
    curves = [measured(run, primary_metric(runs), "tokens_generated") for run in runs.of(arm)]
    found = [curve.values[curve.places >= mark] for curve in curves]
    return float(np.mean([values[0] for values in found])) if all(map(len, found)) else None


def drawn() -> Figure:
    """A panel a task: accuracy with and without; shaded where the interval of the difference in training excludes 0."""
    figure, grid = new_figure(2, 2, width=6.4, height=4.6)
    for axes, (task, folders) in zip(grid.flat, PANELS.items(), strict=True):
        for folder in reversed(folders):
            found = line(folder)
            first = folder == folders[0]
            style = {"lw": 1.8} if first else {"lw": 0.9, "ls": (0, (3, 1.5))}
            for arm, values in zip((WITH, WITHOUT), (found.treated, found.control), strict=True):
                axes.plot(found.tokens, 100 * values, color=COLOURS[arm], label=NAMES[arm] if first else None, **style)
        low, high = (np.array([getattr(gap, end) for gap in found.gaps]) for end in ("low", "high"))
        for ahead, colour in ((low > 0, COLOURS[WITH]), (high < 0, FAINT)):
            sides_of = 100 * found.control, 100 * found.treated
            axes.fill_between(found.tokens, *sides_of, where=ahead, color=colour, alpha=0.25, lw=0)
        in_dapo = compared(folders[0]) is REFILLED
        for arm in (WITH, WITHOUT) if in_dapo else ():
            marked = [(mark, accuracy_after(folders[0], arm, mark)) for mark in MARKS]
            axes.plot(*zip(*((mark, 100 * value) for mark, value in marked if value), strict=True), "o", ms=4.5,
                      color=COLOURS[arm], mec="white", label=f"held out, {NAMES[arm]}")  # fmt: skip
        title(axes, f"{task}, {'in DAPO' if in_dapo else 'mean over combinations'}", "accuracy, %", "generated tokens")
        axes.set_xlim(0)
    grid[0, 0].legend(loc="lower right", fontsize=6.5, frameon=False)
    return figure


def figure() -> str:
    """The figure as SVG."""
    return Drawing("dynamic_sampling_tokens", "", "", drawn()).svg


def described() -> str:
    """Markdown: the figure of README, with its numbers as its description."""
    parts = []
    for task, folders in PANELS.items():
        found = line(folders[0])
        places = np.searchsorted(found.tokens, [found.tokens[-1] / 4, found.tokens[-1]])
        at = [f"{_short(found.gaps[place])} at {found.tokens[place] / 1000:.0f}k tokens" for place in places]
        parts.append(f"{task} {', '.join(at)}")
    numbers = "; ".join(parts)
    return f"![Training accuracy with minus without dynamic sampling, points: {numbers}](docs/figures/{FIGURE.name})"


def _short(gap: Estimate) -> str:
    return amount(TRAINING_ACCURACY, gap.mean, signed=True)


BUDGETS = (20_000, 40_000, 60_000, 80_000, 120_000, 160_000, 240_000)
ROWS = (
    *((task, folder) for task, folders in PANELS.items() if len(folders) > 1 for folder in folders),
    ("sums, groups of four", "cheaper_sampling/sparse"),
)


def along_tokens() -> str:
    """Markdown: with minus without dynamic sampling, refilled and masked, in each set: training accuracy along the
    tokens and held-out accuracy after each mark."""
    heads = [*(f"{budget // 1000}k" for budget in BUDGETS), *(f"held out, {mark // 1000}k" for mark in MARKS)]
    lines = [f"| task | base policies | less off | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for task, folder in ROWS:
        runs = cells(folder)
        seeds = sorted({run.seed for run in runs})
        name = f"[{seeds[0]} to {seeds[-1]}](../experiments/{folder.split('/')[0]})"
        for words, contrast in (("refilled", REFILLED), ("masked", MASKED)):
            curve = dict(at_equal_tokens(runs, contrast, TRAINING_ACCURACY, BUDGETS))
            texts = [points(curve[budget]) if budget in curve else "" for budget in map(float, BUDGETS)]
            marks = dict(held_out(folder, contrast))
            texts += [points(marks[mark]) if mark in marks else "" for mark in MARKS]
            lines.append(f"| {task} | {name} | {words} | {' | '.join(texts)} |")
    return "\n".join(lines)


def held_out(folder: str, contrast: Contrast) -> list[tuple[int, Estimate]]:
    """With minus without in the evaluations after the steps that pass each mark, and at the end, at the budget."""
    runs = cells(folder)
    config = next(iter(runs)).config
    marks = config["evaluation"].get("at_tokens") or ()
    end = on_accuracy(folder, contrast, one_set=True).estimate
    return [*at_marks(runs, contrast, primary_metric(runs), marks), (config["budget"]["tokens_generated"], end)]
