"""The token-level loss at three learning rates, and a larger step with the sample-level loss: the table of the page.

Run in the repository: `python experiments/token_level_loss_rambling/rates.py`.
"""

from pathlib import Path

import pandas as pd

from ablations.compare.statistics import per_base, sign_flip_p, t_interval
from ablations.read.outcomes import bases
from ablations.read.runs import load

HERE = Path(__file__).parent
RATES = ("3.3e-5", "1e-4", "3e-4")
OFF, ON = "naive_grpo", "naive_grpo+token_level_loss"
METRICS = {
    "truncated (points)": ("rollout/truncated_frac", 100),
    "held-out accuracy (points)": ("eval/rambling/avg@2", 100),
    "entropy (nats)": ("rollout/entropy", 1),
    "length (tokens)": ("rollout/length_mean", 1),
    "length of wrong answers (tokens)": ("rollout/length_wrong", 1),
    "repeated 4-grams (points)": ("rollout/repetition_frac", 100),
}
FIRST = 2
"""Outcomes of rollouts are means over steps 2 to 8, as the regime has it; accuracy is that after the last step."""


def outcome(frame: pd.DataFrame, arm: str, metric: str, scale: float) -> pd.Series:
    rows = frame[(frame["arm"] == arm) & (frame["step"] >= FIRST)].dropna(subset=[metric])
    by_seed = rows.groupby("seed")[metric]
    return scale * (by_seed.last() if metric.startswith("eval/") else by_seed.mean()).astype(float)


def main() -> None:
    studies = {rate: load(HERE / f"rate_{rate}" / "runs").usable for rate in RATES}
    base_of = bases(studies["1e-4"])
    frames = {rate: runs.frame() for rate, runs in studies.items()}
    compared = [(f"token- minus sample-level at {rate}", (rate, ON), (rate, OFF)) for rate in RATES]
    compared += [(f"sample-level, {rate} minus 1e-4", (rate, OFF), ("1e-4", OFF)) for rate in RATES if rate != "1e-4"]
    for name, (metric, scale) in METRICS.items():
        levels = {rate: [outcome(frames[rate], arm, metric, scale).mean() for arm in (OFF, ON)] for rate in RATES}
        print(name, {rate: [round(level, 3) for level in of] for rate, of in levels.items()})
        for label, (rate, arm), (other_rate, other_arm) in compared:
            difference = outcome(frames[rate], arm, metric, scale) - outcome(
                frames[other_rate], other_arm, metric, scale
            )
            values, of = difference.tolist(), [base_of[seed] for seed in difference.index]
            found = t_interval(per_base(values, of))
            p = sign_flip_p(per_base(values, of))
            print(f"  {label}: {found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], p = {p:.4f}, n = {found.n}")


if __name__ == "__main__":
    main()
