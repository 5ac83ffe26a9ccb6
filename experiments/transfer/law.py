"""Freezes the laws on the first half of the regimes, and scores them on the second.

    python experiments/transfer/law.py freeze     # writes laws.json from regimes 0 to 23; before the others have run
    python experiments/transfer/law.py            # scores laws.json on regimes 24 to 47

A law of a technique says what the technique is worth in a regime (points of held-out accuracy, DAPO with minus without
it) by what the regime's first rollout step shows: a line over one of PREDICTORS, or a constant.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from dapo_lit.study.compare.statistics import holm

HERE = Path(__file__).parent
FIRST, SECOND = range(24), range(24, 48)
TWICE = (*range(6), *range(24, 30))
"""Regimes that were run with a second base policy, for the noise of an effect."""
SEED, SECOND_SEED = 400, 500
"""Regime n starts from base policy 400 + n of its recipe, and those of TWICE from 500 + n too."""
SIDES = {
    "dynamic sampling": ("dapo", "dapo-dynamic_sampling"),
    "soft overlong punishment": ("dapo", "dapo-soft_overlong_punishment"),
    "token-level loss": ("dapo", "dapo-token_level_loss"),
    "clip-higher": ("dapo", "dapo-clip_higher"),
    "overlong filtering": ("dapo+overlong_filtering", "dapo"),
}
SEEN_IN = "dapo-dynamic_sampling"
"""The arm whose first step is read: it trains on every group, and no policy has been updated yet."""
PREDICTORS = {
    "groups that are not mixed": lambda row, _: 1 - row["rollout/groups_mixed_frac"],
    "advantages in wrong groups": lambda row, _: row["sampling/advantages_in_wrong_groups_frac"],
    "truncated answers": lambda row, _: row["rollout/truncated_frac"],
    # 0 where no answer is right, or none is wrong.
    "length gap of right and wrong": lambda row, limit: (
        (row["rollout/length_correct"] - row["rollout/length_wrong"]) / limit
    ),
    "spread of lengths": lambda row, _: row["rollout/length_cv"],
    "clipped from above": lambda row, _: row["clip/high_frac_last_epoch"],
    "accuracy": lambda row, _: row["rollout/accuracy"],
}
DRAWS = 100_000


class Law(NamedTuple):
    """`worth = intercept + slope * predictor`, in points; without a predictor the slope is 0."""

    predictor: str | None
    intercept: float
    slope: float

    def __call__(self, seen: pd.DataFrame) -> np.ndarray:
        values = np.zeros(len(seen)) if self.predictor is None else seen[self.predictor].to_numpy()
        return self.intercept + self.slope * values


def measured(regimes: Iterable[int], seed: int = SEED) -> pd.DataFrame:
    """A row a regime: the worth of each technique in points (NaN: one of its runs failed), and the predictors."""
    rows = []
    for number in regimes:
        table = pd.read_parquet(HERE / "runs" / f"{number:02}" / "metrics.parquet")
        table = table[table["seed"] == seed + number].sort_values("step")
        last = table.groupby("arm")[f"eval/drawn_{number:02}/avg@2"].last()
        first = table[(table["step"] == 1) & (table["arm"] == SEEN_IN)].iloc[0]
        limit = _limit(number)
        worth = {name: 100 * (last.get(on, np.nan) - last.get(off, np.nan)) for name, (on, off) in SIDES.items()}
        seen = {name: float(np.nan_to_num(of(first, limit))) for name, of in PREDICTORS.items()}
        rows.append({"regime": number, **worth, **seen})
    return pd.DataFrame(rows)


def _limit(number: int) -> int:
    """The response limit of a regime, in tokens."""
    text = (HERE / "conf" / "drawn" / f"{number:02}.yaml").read_text(encoding="utf-8")
    return int(yaml.safe_load(text)["task"]["max_response_tokens"])


def fitted(worth: np.ndarray, seen: pd.DataFrame, predictor: str | None) -> Law:
    """Least squares."""
    if predictor is None or np.ptp(seen[predictor]) == 0:
        return Law(None, float(worth.mean()), 0.0)
    slope, intercept = np.polyfit(seen[predictor], worth, 1)
    return Law(predictor, float(intercept), float(slope))


def chosen(worth: np.ndarray, seen: pd.DataFrame) -> Law:
    """The law whose errors on regimes that were left out of its fit, one at a time, have the least squares."""

    def error(predictor: str | None) -> float:
        others = [np.arange(len(worth)) != i for i in range(len(worth))]
        laws = [fitted(worth[kept], seen[kept], predictor) for kept in others]
        return float(sum((law(seen[~kept])[0] - worth[~kept][0]) ** 2 for law, kept in zip(laws, others, strict=True)))

    return fitted(worth, seen, min([None, *PREDICTORS], key=error))


def skill(law: Law, average: float, worth: np.ndarray, seen: pd.DataFrame) -> float:
    """1: the law is never wrong; 0: it errs as much as the first half's average."""
    return float(1 - ((law(seen) - worth) ** 2).sum() / ((average - worth) ** 2).sum())


def p_value(law: Law, worth: np.ndarray, seen: pd.DataFrame, rng: np.random.Generator) -> float:
    """One-sided: how often the law's predictions would agree as well if they were dealt to the regimes at random.

    A constant has 1.
    """
    if law.predictor is None:
        return 1.0
    said = law(seen) - law(seen).mean()
    observed = float(said @ worth)
    dealt = rng.permuted(np.tile(said, (DRAWS, 1)), axis=1) @ worth
    return float((1 + (dealt >= observed - 1e-9).sum()) / (1 + DRAWS))


def freeze() -> dict[str, Any]:
    """The laws of the first half, and its averages."""
    every, laws = measured(FIRST), {}
    for name in SIDES:
        table = every.dropna(subset=name)
        laws[name] = {"law": chosen(table[name].to_numpy(), table)._asdict(), "average": float(table[name].mean())}
    return laws


def scores(laws: dict[str, Any]) -> pd.DataFrame:
    """Each technique's law on the second half."""
    every, rng, rows = measured(SECOND), np.random.default_rng(0), []
    for name in SIDES:
        table = every.dropna(subset=name)
        worth, law = table[name].to_numpy(), Law(**laws[name]["law"])
        rows.append(
            {
                "technique": name,
                "regimes": len(worth),
                "law": f"{law.intercept:+.1f}" + (f" {law.slope:+.1f} x {law.predictor}" if law.predictor else ""),
                "average, first half": laws[name]["average"],
                "average, second half": worth.mean(),
                "spread, second half": worth.std(ddof=1),
                "skill": skill(law, laws[name]["average"], worth, table),
                "p": p_value(law, worth, table, rng),
                "gain of following it": followed(law, name, worth, table).mean(),
            }
        )
    found = pd.DataFrame(rows).set_index("technique")
    return found.assign(adjusted=holm(found["p"].tolist()))


def followed(law: Law, name: str, worth: np.ndarray, seen: pd.DataFrame) -> np.ndarray:
    """Points that a regime gains where the law decides whether the technique is on, against DAPO as printed."""
    on = law(seen) > 0
    return np.where(on, worth, 0.0) if name == "overlong filtering" else np.where(on, 0.0, -worth)


def reliability() -> pd.Series:
    """The share of an effect's variance over regimes that a second base policy of the same regime repeats."""
    one, two = measured(TWICE), measured(TWICE, SECOND_SEED)
    names = list(SIDES)
    noise = ((one[names] - two[names]) ** 2).mean() / 2
    every = measured([*FIRST, *SECOND])[names].var(ddof=1)
    return (1 - noise / every).rename("repeated share")


if __name__ == "__main__":
    if sys.argv[1:] == ["freeze"]:
        (HERE / "laws.json").write_text(json.dumps(freeze(), indent=2) + "\n", encoding="utf-8")
    else:
        of = scores(json.loads((HERE / "laws.json").read_text(encoding="utf-8")))
        print(of.join(reliability()).round(3).to_string())
