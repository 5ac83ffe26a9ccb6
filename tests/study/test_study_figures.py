"""Figures: what they draw, how they are saved, and whether their colours can be told apart."""

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
from dapo_lit.study.figures.curve_figures import plot_metric, plot_run
from dapo_lit.study.figures.drawing import save
from dapo_lit.study.figures.paper_figures import paper_figures
from dapo_lit.study.figures.style import RC, looks
from dapo_lit.study.figures.technique_figures import plot_techniques, technique_pairs
from dapo_lit.study.read.runs import StudyError, load
from dapo_lit.techniques import DAPO, REGISTER


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


def test_plot_run_draws_finished_and_unfinished_runs_and_refuses_an_empty_one(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=30)
    picture = plot_run(path)
    assert picture == path / "figures" / "run.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    assert plot_run(path).stat().st_size > 10_000
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(StudyError, match="no step was logged"):
        plot_run(path)


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


def test_more_than_four_arms_are_drawn_without_bands_which_would_hide_them(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "table1", seeds=(0, 1), steps=4, every=2))
    axes = plot_metric(runs, "rollout/entropy").axes[0]
    assert not any(isinstance(c, PolyCollection) for c in axes.collections)


def test_each_technique_has_a_row_with_the_arm_that_has_it_and_the_one_that_has_not(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "leave_one_out", seeds=(0, 1), steps=6, every=3))
    pairs = technique_pairs(runs)
    assert pairs["clip_higher"] == ("dapo", "dapo-clip_higher")
    assert pairs["overlong_filtering"] == ("dapo+overlong_filtering", "dapo")
    assert set(pairs) == set(REGISTER)
    figure = plot_techniques(runs, ["rollout/entropy", "rollout/length_mean"])
    panels = figure.axes
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles[::4] == [f"{REGISTER[t].label}: entropy" for t in pairs]
    assert set(titles[1::2]) == {"with - without"}
    assert all(len({axes.get_ylim() for axes in panels[column::4]}) == 1 for column in range(4))
    assert all(len(seed_lines(axes)) == 4 for axes in panels[::2])
    on, off = ([run.series("rollout/entropy") for run in runs.of(arm)] for arm in ("dapo", "dapo-clip_higher"))
    row = list(pairs).index("clip_higher")
    drawn = panels[4 * row + 1].lines[1].get_ydata()  # the first is the line at 0
    np.testing.assert_allclose(drawn, ((on[0] - off[0]) + (on[1] - off[1])) / 2)
    with pytest.raises(StudyError, match="no usable run logged rollout/entropi"):
        plot_techniques(runs, ["rollout/entropi"])


def test_techniques_are_drawn_only_where_an_arm_differs_in_one_switch(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "placebo", seeds=(0, 1), steps=4, every=2))
    with pytest.raises(StudyError, match="no arm differs from dapo in one switch"):
        plot_techniques(runs, ["rollout/entropy"])
    with pytest.raises(StudyError, match="no usable run of naive_grpo"):
        technique_pairs(runs, "naive_grpo")


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


# Machado, Oliveira and Fernandes 2009, severity 1, for linear sRGB


@pytest.mark.parametrize("name", DESIGNS)
def test_no_two_arms_of_a_study_look_alike(name: str) -> None:
    arms = design(name).names
    chosen = list(looks(arms).values())
    assert len(set(chosen)) == min(len(arms), 36)
    assert len({(look.dash, look.marker) for look in chosen}) >= min(len(arms), 6)


def test_each_figure_of_the_paper_is_drawn_for_a_study_that_leaves_each_technique_out(tmp_path: Path) -> None:
    runs = load(write_study(tmp_path, "leave_one_out", (0, 1), steps=4, every=2, questions=4))
    drawings, absent = paper_figures(runs, ["step"])
    over_steps = {f"fig{number}_step" for number in ("1", "2", "3a", "3b", "4", "5", "6", "7")}
    assert {drawing.name for drawing in drawings} == {*over_steps, "fig6_tokens_generated"}
    assert absent == []
