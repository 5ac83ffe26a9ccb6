"""Figures of recorded completions and replayed tokens, for the notebooks."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.figures.style import FAINT, INK, PETROFF6, draw_band, new_figure, numbered, title, with_caption

BLUE, ORANGE, RED = PETROFF6[:3]
SHOWN = (0.33, 3.0)
"""Ratios that plot_clipping draws."""


def plot_clipping(tokens: pd.DataFrame, clip_low: float, clip_high: float) -> Figure:
    """Eq. 10 on real tokens: the ratio against the old probability, a panel for each sign of the advantage.

    Args:
        tokens: the tokens of one replayed step and arm, with old_logprob, ratio, advantage, clipped and update.
        clip_low, clip_high: the bounds in effect.
    """
    figure, grid = new_figure(1, 2, height=3.0)
    later, beyond = tokens[tokens["update"] > 1], 0
    for axes, sign, bound, edge in ((grid[0, 0], 1, "high", 1 + clip_high), (grid[0, 1], -1, "low", 1 - clip_low)):
        rows = later[np.sign(later["advantage"]) == sign]
        past = rows["clipped"] == bound
        axes.axhline(1, color=FAINT, lw=0.8)
        axes.axhline(edge, color=INK, lw=1, ls="--")
        axes.plot(np.exp(rows["old_logprob"][~past]), rows["ratio"][~past], "o", color=BLUE, ms=2.2, alpha=0.35, mew=0)
        axes.plot(np.exp(rows["old_logprob"][past]), rows["ratio"][past], "^", color=RED, ms=4.5, mew=0)
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        axes.set_yticks(ticks := [0.35, 0.5, 1 - clip_low, 1.0, 1 + clip_high, 2.0, 2.8], [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.set_ylim(*SHOWN)
        beyond += int((~rows["ratio"].between(*SHOWN)).sum())
        wanted = "more likely" if sign > 0 else "less likely"
        title(
            axes,
            f"A {'>' if sign > 0 else '<'} 0: to be {wanted} ({past.sum()} of {len(rows)} clipped)",
            "ratio at the update",
            "probability before the step",
        )
    caption = (
        f"n = {len(later)} response tokens of updates 2 to {int(tokens['update'].max())} of one step (at the first "
        f"update every ratio is 1). Triangles are past the bound in effect (dashed: {1 + clip_high:g} left, "
        f"{1 - clip_low:g} right) and have no gradient. Both axes are logarithmic; {beyond} tokens beyond them are not "
        "drawn. All tokens, so no interval."
    )
    return with_caption(figure, caption)


def plot_room(tokens: pd.DataFrame, clip_low: float, clip_high: float) -> Figure:
    """Tokens by their old probability, and the share of them that each bound would clip."""
    figure, grid = new_figure(1, 2, height=2.8)
    edges = np.array([0, 0.001, 0.01, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0000001])
    names = ["<.001", "to .01", "to .1", "to .2", "to .4", "to .6", "to .8", "to 1"]
    good = tokens[(tokens["advantage"] > 0) & (tokens["update"] > 1)]
    old = np.exp(good["old_logprob"])
    place = np.digitize(old, edges) - 1
    counts = np.bincount(place, minlength=len(names))
    left, right = grid[0]
    left.set_axisbelow(True)
    left.bar(range(len(names)), counts / max(1, counts.sum()), color=BLUE, width=0.7)
    for index, count in enumerate(counts):
        left.text(index, counts[index] / max(1, counts.sum()), f"{count}", ha="center", va="bottom", fontsize=7)
    title(left, "Old probability of the tokens with A > 0", "share of them", "probability before the step")
    for edge, colour, marker, label in ((clip_low, ORANGE, "s", "symmetric"), (clip_high, RED, "^", "clip-higher")):
        shares = [float((good["ratio"][place == i] > 1 + edge).mean()) if n else np.nan for i, n in enumerate(counts)]
        right.plot(range(len(names)), shares, marker, color=colour, ms=5, label=f"ratio > {1 + edge:g} ({label})")
    top = right.get_ylim()[1]
    right.set_ylim(-0.03 * top, 1.4 * top)
    right.legend(fontsize=7.5, loc="upper left")
    title(right, "Tokens that a bound would clip", "share of the bin's tokens", "probability before the step")
    for axes in (left, right):
        axes.set_xticks(range(len(names)), names, fontsize=6.5)
    caption = (
        f"n = {len(good)} tokens with a positive advantage, updates 2 to {int(tokens['update'].max())} of one step; "
        "numbers over the bars are counts. No interval: these are all tokens of the step."
    )
    return with_caption(figure, caption)


def plot_shares(rollouts: pd.DataFrame, patterns: Mapping[str, str]) -> Figure:
    """Share of responses in which each pattern occurs, by rollout step, with its 95 % t-interval over groups.

    Args:
        rollouts: the completions of one run, with step, problem_id, attempt and response.
        patterns: name to regular expression.
    """
    figure, grid = new_figure(width=5.6, height=3.0)
    axes: Axes = grid[0, 0]
    for index, name in enumerate(patterns):
        found = rollouts["response"].str.contains(re.compile(patterns[name]))
        groups = found.groupby([rollouts["step"], rollouts["problem_id"], rollouts["attempt"]]).mean()
        estimates = {int(str(step)): t_interval(values.to_numpy()) for step, values in groups.groupby(level=0)}
        steps = list(estimates)
        means = [e.mean for e in estimates.values()]
        low = [e.mean if e.low is None else e.low for e in estimates.values()]
        high = [e.mean if e.high is None else e.high for e in estimates.values()]
        draw_band(axes, steps, low, high, PETROFF6[index])
        axes.plot(steps, means, **numbered(index).line, label=name)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    title(axes, "What responses contain", "share of responses", "rollout step")
    axes.legend()
    sizes = rollouts.groupby("step").size()
    caption = (
        f"One run; {sizes.min()} to {sizes.max()} responses a recorded step, all that were generated. Band: 95 % "
        "t-interval over the step's groups (sampling only; another seed would differ more)."
    )
    return with_caption(figure, caption)
