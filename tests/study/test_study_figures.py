"""Figures: their lines, their files, and the looks of arms."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from shipped import DESIGNS, design
from synthetic_runs import write_study

from dapo_lit.study.figures.curve_figures import plot_metric
from dapo_lit.study.figures.style import looks
from dapo_lit.study.read.runs import StudyError, load


def seed_lines(axes: Axes) -> list[np.ndarray]:
    """The points of each thin line, one for each seed."""
    thin = [c for c in axes.collections if isinstance(c, LineCollection) and set(c.get_linewidths()) == {0.6}]
    return [np.asarray(segment) for collection in thin for segment in collection.get_segments()]


def test_a_metric_plot_has_a_line_for_each_seed_under_each_mean(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "pair", seeds=(0, 1, 2), steps=6, every=3))
    axes = plot_metric(runs, "rollout/entropy").axes[0]
    assert len(seed_lines(axes)) == 6
    assert [line.get_linewidth() for line in axes.lines] == [1.6, 1.6]
    assert sum(isinstance(c, PolyCollection) for c in axes.collections) == 2
    seen = [value for line in seed_lines(axes) for value in line[:, 1]]
    low, high = axes.get_ylim()
    spread = max(seen) - min(seen)  # and not the bands set the range
    assert min(seen) - 0.2 * spread < low < min(seen)
    assert max(seen) < high < max(seen) + 0.2 * spread
    with pytest.raises(StudyError, match="rollout/entropi"):
        plot_metric(runs, "rollout/entropi")
    with pytest.raises(StudyError, match="axis"):
        plot_metric(runs, "rollout/entropy", x="epoch")


@pytest.mark.parametrize("name", DESIGNS)
def test_no_two_arms_of_a_study_look_alike(name: str) -> None:
    arms = design(name).names
    chosen = list(looks(arms).values())
    assert len(set(chosen)) == min(len(arms), 36)
    assert len({(look.dash, look.marker) for look in chosen}) >= min(len(arms), 6)
