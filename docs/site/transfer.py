"""The first half of experiments/transfer: what dynamic sampling was worth in its regimes, and which law was frozen on
them. Its second half, on which laws are scored, is the business of law.py."""

import json
from functools import cache
from types import ModuleType

import pandas as pd
from cells import EXPERIMENTS
from matplotlib.figure import Figure
from stated import script

from ablations.compare.statistics import t_interval
from ablations.figures.style import FAINT, PETROFF6, Drawing, new_figure, title

FOLDER = EXPERIMENTS / "transfer"
FIGURE = EXPERIMENTS.parent / "docs" / "figures" / "transfer.svg"
TASKS = {"chain_sum": "sums", "string_programs": "programs", "parity": "parity"}


@cache
def law() -> ModuleType:
    """experiments/transfer/law.py."""
    return script("transfer/law.py")


@cache
def pairs() -> pd.DataFrame:
    """The pairs of runs of the first half."""
    return law().measured(law().FIRST)


def worths() -> str:
    """Markdown: what dynamic sampling was worth over regimes, how regimes differ, and what the frozen laws say."""
    frozen = json.loads((FOLDER / "laws.json").read_text(encoding="utf-8"))["laws"]
    columns = {name: _column(name, law().Law(**frozen[name]["law"])) for name in law().WORTHS}
    rows = [[name, *(column[name] for column in columns.values())] for name in next(iter(columns.values()))]
    return _markdown([["first half", *columns], *rows])


def _column(name: str, frozen: tuple) -> dict[str, str]:
    table = law().kept(pairs(), name)
    found = {"regimes": str(len(table)), "worth, points": _interval(table[name])}
    found |= {said: _interval(table.loc[table["task"] == task, name]) for task, said in TASKS.items()}
    over, means = (law().left_out_error(table, name, one) for one in (frozen.predictor, None))
    return found | {
        "spread of regimes within tasks": f"{law().spread(table, name):.1f}",
        "noise of one pair": f"{law().noise(pairs(), name):.1f}",
        "share of the variance within tasks that is not noise": f"{law().true_share(pairs(), name):.2f}",
        "frozen law": f"{frozen.slope:+.1f} x {frozen.predictor}" if frozen.predictor else "the mean of the task",
        "its skill on regimes left out one at a time": f"{1 - over / means:.2f}",
    }


def predictors() -> str:
    """Markdown: of each number of the first step, the line over it: points for one standard deviation within tasks, and
    its skill on regimes that are left out one at a time."""
    names = law().WORTHS
    heads = ["number of the first step", "its spread"]
    heads += [f"{name}: {what}" for name in names for what in ("points a spread", "skill")]
    rows = []
    for predictor in law().PREDICTORS:
        row = [predictor]
        for name in names:
            table = law().kept(pairs(), name)
            spread = law().spread(table, predictor)
            line = law().fitted(table, name, predictor)
            skill = 1 - law().left_out_error(table, name, predictor) / law().left_out_error(table, name, None)
            row += [] if len(row) > 1 else [f"{spread:.3f}"]
            row += [f"{line.slope * spread:+.1f}", f"{skill:.2f}"]
        rows.append(row)
    return _markdown([heads, *rows])


def tokens() -> str:
    """Markdown: tokens of the run with dynamic sampling over those of the other, and where equal tokens were read."""
    table = pairs().groupby("regime")[["tokens", "share of the tokens"]].mean()
    found = table.describe(percentiles=[0.05, 0.5, 0.95]).loc[["min", "5%", "50%", "95%", "max"]].T
    said = {
        "tokens": "tokens after 12 steps, with over without",
        "share of the tokens": "mark of equal tokens, over the tokens of the run without",
    }
    rows = [[said[str(name)], *(f"{value:.2f}" for value in row)] for name, row in found.iterrows()]
    return _markdown([["means of regimes", "least", "1 of 20", "median", "19 of 20", "most"], *rows])


def drawn() -> Figure:
    """A panel for each worth: a point a regime, over the number that most squares are explained by there."""
    figure, grid = new_figure(1, 2, width=6.4, height=2.8)
    frozen = json.loads((FOLDER / "laws.json").read_text(encoding="utf-8"))["laws"]
    for axes, name in zip(grid.flat, law().WORTHS, strict=True):
        table, line = law().kept(pairs(), name), law().Law(**frozen[name]["law"])
        over = line.predictor or "groups that are not mixed"
        for colour, (task, said) in zip(PETROFF6, TASKS.items(), strict=False):
            own = table[table["task"] == task].sort_values(over)
            axes.plot(own[over], own[name], "o", ms=4, color=colour, label=said)
            ends = own.iloc[[0, -1]]
            axes.plot(ends[over], line(ends), color=colour, lw=1)
        axes.axhline(0, color=FAINT, lw=1)
        axes.locator_params(axis="x", nbins=5)
        title(axes, name, "worth of dynamic sampling, points", f"{over}, first step")
    grid.flat[0].legend(loc="best", fontsize=6.5, frameon=False)
    return figure


def figure() -> str:
    """The figure as SVG."""
    return Drawing("transfer", "", "", drawn()).svg


def _interval(values: pd.Series) -> str:
    found = t_interval(values.to_numpy())
    return f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}]"


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body])
