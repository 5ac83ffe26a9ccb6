"""How often law.py finds a law, by the share of the true variance within tasks that one predictor explains.

    python experiments/transfer/power.py        # four minutes

Tables are made up: every predictor and the worth differ between tasks, and nothing was trained. What is seen of a
regime is its true worth and the noise of its three pairs of runs.
"""

import sys

import numpy as np
import pandas as pd
from law import FIRST, PREDICTORS, SECOND, SEEDS, TASKS, WORTHS, chosen, fitted, kept, p_value, skill

TABLES = 120
SPREADS = (3.0, 5.0, 8.0)
"""Of the true worth of regimes within tasks, in points."""
NOISE = {"chain_sum": 5.0, "string_programs": 3.3, "parity": 5.7}
"""The standard deviation of one pair in the committed calibrations, in points: of dynamic sampling or of placebos,
whichever is larger."""
LEVEL = 0.05 / len(WORTHS)
"""What the smallest p has to reach after Holm."""


def made_up(numbers: range, share: float, spread: float, levels: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Pairs, in which the first predictor explains this share of the true worth's variance within tasks."""
    rows = []
    for number in numbers:
        task, seen = number % 3, rng.normal(0, 1, len(PREDICTORS))
        worth = levels[task, 0] + spread * (np.sqrt(share) * seen[0] + np.sqrt(1 - share) * rng.normal())
        row = {"regime": number, "task": TASKS[task], **dict(zip(PREDICTORS, levels[task, 1:] + seen, strict=True))}
        rows += [row | {"worth": worth + rng.normal(0, NOISE[TASKS[task]])} for _ in SEEDS]
    return pd.DataFrame(rows)


def main() -> None:
    tables = int(sys.argv[1]) if len(sys.argv) > 1 else TABLES
    for spread in SPREADS:
        for share in (0.0, 0.4, 0.6, 1.0):
            rng, skills, found = np.random.default_rng(11), [], []
            for _ in range(tables):
                levels = rng.normal(0, 6, (len(TASKS), 1 + len(PREDICTORS)))
                first, second = (kept(made_up(n, share, spread, levels, rng), "worth") for n in (FIRST, SECOND))
                law, means, worth = chosen(first, "worth"), fitted(first, "worth", None), second["worth"].to_numpy()
                skills.append(skill(law, means, worth, second))
                found.append(p_value(law, worth, second, rng, draws=399) <= LEVEL)
            both = np.mean(np.array(found) & (np.array(skills) > 0.2))
            low, middle, high = np.quantile(skills, [0.05, 0.5, 0.95])
            print(
                f"spread {spread}, share {share}: p reached {np.mean(found):.0%}, and skill > 0.2 {both:.0%}", end="; "
            )
            print(f"skill {middle:.2f} [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
