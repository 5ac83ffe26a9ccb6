"""Forks and whole runs of SmolLM2-135M, and the same contrasts of whole runs in the toy task `joint`.

python experiments/smollm2_forks/figure.py     prints the numbers and writes effects.svg

With minus without a technique: training accuracy of the last two steps in points, and generated tokens of all steps
(of a fork, since its state) in percent of those without.
"""

from pathlib import Path
from statistics import fmean

import matplotlib as mpl

from ablations.compare.statistics import t_interval
from ablations.figures.style import FAINT, INK, RC, new_figure, title
from ablations.files.metrics_file import read_metrics
from ablations.read.run import Run
from ablations.read.runs import load
from ablations.techniques import REGISTER

HERE = Path(__file__).parent
JOINT = HERE.parent / "factorial_joint" / "runs"
ROWS = [
    ("dynamic_sampling", "fork from step 2, 4 steps", HERE / "forks" / "step_000002", 2),
    ("dynamic_sampling", "fork from step 5, 4 steps", HERE / "forks" / "step_000005", 5),
    ("dynamic_sampling", "whole runs, 6 steps", HERE / "pairs", 1),
    ("dynamic_sampling", "toy task joint, 16 steps", JOINT, 1),
    ("soft_overlong_punishment", "fork from step 2, 4 steps", HERE / "forks" / "step_000002", 2),
    ("soft_overlong_punishment", "fork from step 5, 4 steps", HERE / "forks" / "step_000005", 5),
    ("soft_overlong_punishment", "toy task joint, 16 steps", JOINT, 1),
]
"""Technique, name, packed cells, first step."""
LABELS = ("training accuracy (points)", "generated tokens (% of those without)")


def outcomes(run: Run, tokens_before: float) -> tuple[float, float]:
    """Training accuracy of the last two steps in points, and tokens generated since the state."""
    accuracy = 100 * float(run.series("rollout/accuracy").iloc[-2:].mean())
    return accuracy, float(run.series("tokens_generated").iloc[-1]) - tokens_before


def differences(folder: Path, technique: str, before: float) -> tuple[list[float], list[float]]:
    """Of the two outcomes, one a seed or stream that both arms have."""
    runs = load(folder).usable
    with_it, without = (
        {run.seed: outcomes(run, before) for run in runs.of(arm)} for arm in ("dapo", f"dapo-{technique}")
    )
    seeds = sorted(with_it.keys() & without.keys())
    unit = fmean(without[seed][1] for seed in seeds) / 100
    return (
        [with_it[seed][0] - without[seed][0] for seed in seeds],
        [(with_it[seed][1] - without[seed][1]) / unit for seed in seeds],
    )


def main() -> None:
    spent = read_metrics(HERE / "run").table["tokens_generated"]
    with mpl.rc_context(RC):
        figure, grid = new_figure(1, 2, height=2.7)
        for place, (technique, name, folder, first) in enumerate(ROWS):
            y, colour = -place - (technique != ROWS[0][0]), REGISTER[technique].colour
            told = []
            for axes, values in zip(grid[0], differences(folder, technique, float(spent[first - 1])), strict=True):
                found = t_interval(values)
                axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.55, ms=3.5)
                axes.plot([found.low, found.high], [y - 0.3] * 2, color=INK, lw=1.2)
                axes.plot(found.mean, y - 0.3, "D", color=INK, ms=3.5)
                told.append(f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}]")
            print(f"{technique}, {name}: {told[0]} points, {told[1]} % tokens, n = {len(values)}")
        for axes, label in zip(grid[0], LABELS, strict=True):
            axes.axvline(0, color=FAINT, lw=1, zorder=1)
            axes.set_ylim(-len(ROWS) - 0.6, 0.9)
            title(axes, "", "", label)
            axes.set_yticks([-place - (t != ROWS[0][0]) for place, (t, *_) in enumerate(ROWS)], [])
        grid[0, 0].set_yticklabels([name for _, name, *_ in ROWS])
        for technique, y in (("dynamic_sampling", 0.55), ("soft_overlong_punishment", -4.35)):
            grid[0, 0].text(0, y, REGISTER[technique].label, fontsize=8, color=INK, transform=_beside(grid[0, 0]))
        figure.savefig(HERE / "effects.svg", metadata={"Date": None})


def _beside(axes: mpl.axes.Axes) -> mpl.transforms.Transform:
    """Left of the axes in x, data in y."""
    left = mpl.transforms.Affine2D().translate(-0.62, 0) + axes.transAxes
    return mpl.transforms.blended_transform_factory(left, axes.transData)


if __name__ == "__main__":
    main()
