"""Emergence of long chains by their share in the base policy, on parity and on sums: a table and a picture.

Run in the repository: `python experiments/long_chains_parity/phase_diagram.py`; rewrites phase_diagram.svg beside it.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ablations.figures.style import INK, PAGE_IN, PAPER, RC
from ablations.read.runs import load

HERE = Path(__file__).parent
TASKS = {"parity": HERE / "runs", "sums": HERE.parent / "long_chains_sums" / "runs"}
EMERGED = 0.5
"""Written share of a step's answers above which long chains have emerged, as registered."""


def written(folder: Path) -> dict[float, np.ndarray]:
    """Share of long chains in the base policy, in percent -> written share [seeds, steps] of each step's answers."""
    frame = load(folder).usable.frame().dropna(subset=["task/steps_frac"])
    found = {}
    for arm, rows in frame.groupby("arm"):
        table = rows.pivot(index="seed", columns="step", values="task/steps_frac")
        found[100 * float(str(arm).partition("long_chains=")[2])] = table.to_numpy()
    return dict(sorted(found.items()))


def first_step(shares: np.ndarray) -> list[float]:
    """The first step of each seed with more than half written; infinite: none."""
    return [float(np.argmax(row > EMERGED) + 1) if (row > EMERGED).any() else np.inf for row in shares]


def main() -> None:
    found = {task: written(folder) for task, folder in TASKS.items() if folder.is_dir()}
    for task, by_share in found.items():
        for share, table in by_share.items():
            steps = sorted(first_step(table))
            print(
                f"{task}, {share:g} %: first step {100 * table[:, 0].mean():.1f} % written, "
                f"last {100 * table[:, -1].mean():.1f} %, {sum(np.isfinite(steps))} of {len(steps)} emerged, "
                f"median step {np.median(steps):g}, by seed {', '.join(f'{s:g}' for s in first_step(table))}"
            )
    with mpl.rc_context({**RC, "axes.grid": False}):
        figure = Figure(figsize=(PAGE_IN, 2.4), layout="constrained")
        FigureCanvasAgg(figure)
        widths = [next(iter(by_share.values())).shape[1] + 2 for by_share in found.values()]
        axes = figure.subplots(1, len(found), squeeze=False, width_ratios=widths)[0]
        for ax, (task, by_share) in zip(axes, found.items(), strict=True):
            means = 100 * np.array([table.mean(axis=0) for table in by_share.values()])
            image = ax.imshow(means, vmin=0, vmax=100, cmap="cividis", aspect="auto", origin="lower")
            for y, row in enumerate(means):
                for x, value in enumerate(row):
                    colour = INK if value > 55 else PAPER
                    ax.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
            ax.set_yticks(range(len(by_share)), [f"{share:g}" for share in by_share])
            ax.set_xticks(range(0, means.shape[1], 2), [str(x + 1) for x in range(0, means.shape[1], 2)])
            ax.set(title=task, xlabel="rollout step", ylabel="long chains in the base (%)")
            ax.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="written answers (%)")
        figure.savefig(HERE / "phase_diagram.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
