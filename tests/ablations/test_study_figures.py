"""Figures: their lines, their files, and the looks of arms."""

import re
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from shipped import DESIGNS, design
from synthetic_runs import write_study

from ablations.figures.curve_figures import plot_metric
from ablations.figures.style import Drawing, looks
from ablations.read.runs import StudyError, load


def test_a_metric_plot_has_a_line_and_a_band_for_each_arm(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "pair", seeds=(0, 1, 2), steps=6, every=3))
    axes = plot_metric(runs, "rollout/entropy").axes[0]
    assert len(axes.lines) == sum(isinstance(c, PolyCollection) for c in axes.collections) == 2
    with pytest.raises(StudyError, match="rollout/entropi"):
        plot_metric(runs, "rollout/entropi")


@pytest.mark.parametrize("name", DESIGNS)
def test_no_two_arms_of_a_study_look_alike(name: str) -> None:
    arms = design(name).names
    chosen = list(looks(arms).values())
    assert len(set(chosen)) == min(len(arms), 36)
    assert len({(look.dash, look.marker) for look in chosen}) >= min(len(arms), 6)
    assert len({look.colour for look in chosen}) >= min(len(arms), 5)


def test_places_that_differ_by_rounding_give_the_same_svg():
    """The solver of the layout leaves last digits to chance, and matplotlib names clippings by exact places."""

    def drawn(width: float) -> str:
        figure = Figure()
        figure.add_axes((0.1, 0.1, width, 0.8)).plot([1, 2, 3], [1, 2, 1], marker="o")
        return Drawing("name", "", "", figure).svg

    assert drawn(0.8) == drawn(0.8 + 1e-13)
    assert drawn(0.8) != drawn(0.7)
    assert re.search(r'clip-path="url\(#p\d+\)"', drawn(0.8))
