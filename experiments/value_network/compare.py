"""PPO beside GRPO: seconds and gradient noise of steps 6 to 16, paired by seed.

Run in the repository: `python experiments/value_network/compare.py`.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ablations.compare.statistics import t_interval
from ablations.read.runs import load

METRICS = {
    "seconds of scoring and updates": "training_s",
    "seconds of a rollout step": "step_s",
    "gradient noise": "optim/grad_noise",
    "gradient norm": "optim/grad_norm",
    "training accuracy": "rollout/accuracy",
    "entropy": "rollout/entropy",
}
FIRST = 6
"""PPO trains its value network alone before."""


def mean_by_seed(frame: pd.DataFrame, metric: str) -> pd.Series:
    return frame.groupby("seed")[metric].mean()


class Ratio(NamedTuple):
    """PPO over GRPO: geometric mean over pairs with its 95 % interval, and the means of both."""

    mean: float
    low: float
    high: float
    ppo: float
    grpo: float
    pairs: int


def ratios() -> dict[str, Ratio]:
    """By the name of the metric."""
    frame = load(Path(__file__).parent / "runs").usable.frame()
    frame["training_s"] = frame["time/score_s"] + frame["time/train_s"]
    frame["step_s"] = frame["time/generate_s"] + frame["time/verify_s"] + frame["training_s"] + frame["time/sync_s"]
    frame = frame[frame["step"] >= FIRST]
    arms = {"ppo" if "ppo" in arm else "grpo": rows for arm, rows in frame.groupby("arm")}
    found = {}
    for name, metric in METRICS.items():
        ppo, grpo = (mean_by_seed(arms[arm], metric) for arm in ("ppo", "grpo"))
        log = t_interval(np.log(ppo / grpo))
        found[name] = Ratio(*np.exp([log.mean, log.low, log.high]), ppo.mean(), grpo.mean(), len(ppo))
    return found


def main() -> None:
    for name, one in ratios().items():
        print(
            f"{name}: PPO {one.ppo:.3g}, GRPO {one.grpo:.3g}, "
            f"ratio {one.mean:.2f} [{one.low:.2f}, {one.high:.2f}] ({one.pairs} pairs)"
        )


if __name__ == "__main__":
    main()
