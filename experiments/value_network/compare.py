"""PPO beside GRPO: seconds and gradient noise of steps 6 to 16, paired by seed.

Run in the repository: `python experiments/value_network/compare.py`.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from dapo_lit.study.compare.statistics import t_interval
from dapo_lit.study.read.runs import load

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


def main() -> None:
    frame = load(Path(__file__).parent / "runs").usable.frame()
    frame["training_s"] = frame["time/score_s"] + frame["time/train_s"]
    frame["step_s"] = frame["time/generate_s"] + frame["time/verify_s"] + frame["training_s"] + frame["time/sync_s"]
    frame = frame[frame["step"] >= FIRST]
    arms = {"ppo" if "ppo" in arm else "grpo": rows for arm, rows in frame.groupby("arm")}
    for name, metric in METRICS.items():
        ppo, grpo = (mean_by_seed(arms[arm], metric) for arm in ("ppo", "grpo"))
        log = t_interval(np.log(ppo / grpo))
        low, high = np.exp([log.low, log.high])
        print(
            f"{name}: PPO {ppo.mean():.3g}, GRPO {grpo.mean():.3g}, "
            f"ratio {np.exp(log.mean):.2f} [{low:.2f}, {high:.2f}] ({len(ppo)} pairs)"
        )


if __name__ == "__main__":
    main()
