"""How often law.py finds a law, by the share of an effect's variance within tasks that one predictor explains.

    python experiments/transfer/power.py        # two minutes

Tables are made up: every predictor and the effect differ between tasks, and nothing was trained.
"""

import numpy as np
import pandas as pd
from law import FIRST, PREDICTORS, SECOND, TASKS, TECHNIQUES, chosen, fitted, p_value, skill

TABLES = 120
SPREAD = 5.0
"""Of the effect within tasks, in points."""
LEVEL = 0.05 / len(TECHNIQUES)
"""What the smallest p has to reach after Holm."""


def made_up(numbers: range, share: float, levels: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """A table in which the first predictor explains this share of the effect's variance within tasks."""
    rows = []
    for number in numbers:
        task, seen = number % 3, rng.normal(0, 1, len(PREDICTORS))
        worth = levels[task, 0] + SPREAD * (np.sqrt(share) * seen[0] + np.sqrt(1 - share) * rng.normal())
        row = dict(zip(PREDICTORS, levels[task, 1:] + seen, strict=True))
        rows.append({"regime": number, "task": TASKS[task], "effect": worth, **row})
    return pd.DataFrame(rows)


def main() -> None:
    rng = np.random.default_rng(11)
    for share in (0.0, 0.2, 0.4, 0.6):
        skills, found = [], []
        for _ in range(TABLES):
            levels = rng.normal(0, 6, (len(TASKS), 1 + len(PREDICTORS)))
            first, second = (made_up(numbers, share, levels, rng) for numbers in (FIRST, SECOND))
            law, means, worth = chosen(first, "effect"), fitted(first, "effect", None), second["effect"].to_numpy()
            skills.append(skill(law, means, worth, second))
            found.append(p_value(law, worth, second, rng, draws=399) <= LEVEL)
        both = np.mean(np.array(found) & (np.array(skills) > 0.2))
        low, middle, high = np.quantile(skills, [0.05, 0.5, 0.95])
        print(f"share {share}: p reached {np.mean(found):.0%}, and skill > 0.2 {both:.0%}", end="; ")
        print(f"skill {middle:.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
