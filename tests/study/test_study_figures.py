"""Figures: their lines, their files, and the looks of arms."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from shipped import DESIGNS, design
from synthetic_runs import write_run, write_study

from dapo_lit.run_files import metrics_line
from dapo_lit.study.designs import Arm
from dapo_lit.study.figures.curve_figures import curves_figure, plot_metric
from dapo_lit.study.figures.drawing import save
from dapo_lit.study.figures.style import RC, looks
from dapo_lit.study.read.runs import StudyError, load
from dapo_lit.techniques import DAPO


def seed_lines(axes: Axes) -> list[np.ndarray]:
    """The points of each thin line, one for each seed."""
    thin = [c for c in axes.collections if isinstance(c, LineCollection) and set(c.get_linewidths()) == {0.6}]
    return [np.asarray(segment) for collection in thin for segment in collection.get_segments()]


def test_seeds_without_a_common_range_are_drawn_without_a_mean(tmp_path: Path) -> None:
    for seed, start in enumerate((0, 10_000)):
        folder = write_run(tmp_path, Arm(DAPO), seed, study="single", steps=6, every=3)
        file = folder / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(metrics_line(row | {"wall_s": start + row["step"]}) for row in rows))
    axes = plot_metric(load(tmp_path / "single"), "rollout/entropy", x="wall_s").axes[0]
    assert len(seed_lines(axes)) == 2
    assert len(axes.lines) == 0


def test_a_metric_plot_has_a_line_for_each_seed_under_each_mean(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "emergence", seeds=(0, 1, 2), steps=6, every=3))
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


def test_fonts_are_embedded_and_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    runs = load(write_run(tmp_path, steps=6, every=3))
    files = [save(plot_metric(runs, "rollout/entropy"), tmp_path / name / "f", ("pdf", "svg", "png")) for name in "ab"]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
    pdf = files[0][0].read_bytes()
    assert b"/Type3" not in pdf
    assert b"/FontFile2" in pdf
    assert RC["pdf.fonttype"] == 42
    assert "rollout step</text>" in files[0][1].read_text()


@pytest.mark.parametrize("name", DESIGNS)
def test_no_two_arms_of_a_study_look_alike(name: str) -> None:
    arms = design(name).names
    chosen = list(looks(arms).values())
    assert len(set(chosen)) == min(len(arms), 36)
    assert len({(look.dash, look.marker) for look in chosen}) >= min(len(arms), 6)


def test_the_curves_of_a_report_are_those_of_at_most_eight_arms(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "leave_one_out", (0, 1), steps=4, every=2, questions=4))
    panel = curves_figure(runs, "eval/chain_sum/avg@4").figure.axes[0]
    means = [line.get_ydata()[-1] for line in panel.lines]
    scores = [np.mean([run.series("eval/chain_sum/avg@4").iloc[-1] for run in runs.of(arm)]) for arm in runs.arms]
    np.testing.assert_allclose(means, scores)
    drawn = curves_figure(load(write_study(tmp_path, "factorial_half", (0,), steps=4, every=2)), "rollout/entropy")
    assert len(drawn.figure.axes[0].lines) == 8
    assert "8 of 16 arms" in drawn.caption
