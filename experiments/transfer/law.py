"""Freezes the laws on the first half of the regimes, and scores them on the second.

    python experiments/transfer/law.py freeze     # writes laws.json from regimes 0 to 23; before the others have run
    python experiments/transfer/law.py            # scores laws.json on regimes 24 to 47

A law of a technique says what the technique is worth in a regime (points of held-out accuracy with it minus without it)
by the regime's task and by what its first rollout step shows: the mean of the task, or a line over one of PREDICTORS
with one slope and an intercept for each task. Everything is measured within tasks. Across three tasks almost any number
goes with the worth of almost any technique.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import dapo_lit as dapo_lit  # says how the configs of its runs are read
from ablations.compare.contrasts import difference
from ablations.compare.equal_budget import at_marks
from ablations.compare.statistics import holm
from ablations.errors import UserError
from ablations.files.manifest import MANIFEST, sum_of
from ablations.read.guard import refusals
from ablations.read.outcomes import outcome, primary_metric
from ablations.read.registration import doubts
from ablations.read.run import Run, StudyError
from ablations.read.runs import Runs, load

HERE = Path(__file__).parent
PACKED, LAWS = HERE / "runs", HERE / "laws.json"
UNPACKED = Path("runs")
"""Where run.sh, started in the checkout, lets the cells train: transfer_drawn_00 to transfer_drawn_47."""
FIRST, SECOND = range(24), range(24, 48)
TWICE = (*range(6), *range(24, 30))
"""Regimes that are run with a second base policy, for the noise of an effect; as halves are, they are a third of each
task."""
SEED, SECOND_SEED = 400, 500
"""Regime n starts from base policy 400 + n of its recipe, and those of TWICE from 500 + n too."""
SIDES = {
    "dynamic sampling": ("dapo", "dapo-dynamic_sampling"),
    "soft overlong punishment": ("dapo", "dapo-soft_overlong_punishment"),
    "token-level loss": ("dapo", "dapo-token_level_loss"),
    "clip-higher": ("dapo", "dapo-clip_higher"),
    "overlong filtering": ("dapo+overlong_filtering", "dapo"),
}
AT_TOKENS = "dynamic sampling, equal tokens"
TECHNIQUES = (*SIDES, AT_TOKENS)
SEEN_IN = "dapo-dynamic_sampling"
"""The arm whose first step is read: it trains on every group that it samples."""
PREDICTORS: dict[str, Callable[[Callable[[str], float], int], float]] = {
    "groups that are not mixed": lambda first, _: 1 - first("rollout/groups_mixed_frac"),
    # No value where there are no advantages, and no length where no answer is right, or none is wrong.
    "advantages in wrong groups": lambda first, _: or_nothing(first("sampling/advantages_in_wrong_groups_frac")),
    "truncated answers": lambda first, _: first("rollout/truncated_frac"),
    "length gap of right and wrong": lambda first, limit: or_nothing(
        (first("rollout/length_correct") - first("rollout/length_wrong")) / limit
    ),
    "spread of lengths": lambda first, _: first("rollout/length_cv"),
    "clipped from above": lambda first, _: first("clip/high_frac_last_epoch"),
    "accuracy": lambda first, _: first("rollout/accuracy"),
}
"""Each of a metric's value in the first step, and the response limit."""
TASKS = ("chain_sum", "string_programs", "parity")
LEAST = 3
"""Regimes of each task that a law is fitted on at least: one is left out in turn, and the others need a mean."""
DRAWS = 100_000


class Law(NamedTuple):
    """`worth = intercept of the task + slope * predictor`, in points; without a predictor the slope is 0."""

    intercepts: dict[str, float]
    predictor: str | None = None
    slope: float = 0.0

    def __call__(self, table: pd.DataFrame) -> np.ndarray:
        values = 0.0 if self.predictor is None else table[self.predictor].to_numpy()
        return table["task"].map(self.intercepts).to_numpy() + self.slope * values


def read(number: int) -> Runs:
    """The packed cells of a regime. Raises StudyError: they are not as they were packed, or may not be compared."""
    folder = PACKED / f"{number:02}"
    runs = load(folder)
    if faults := [*runs.warnings, *refusals(runs), *doubts(folder, runs.runs)]:
        raise StudyError(f"{folder}: {'; '.join(faults)}")
    return runs


def measured(regimes: Iterable[int], seed: int = SEED) -> pd.DataFrame:
    """A row a regime: its task, the worth of each technique in points, and the predictors.

    NaN: an arm that it needs has no result; `absent` names those arms.
    """
    return pd.DataFrame([_regime(number, read(number), seed + number) for number in regimes])


def _regime(number: int, every: Runs, seed: int) -> dict[str, Any]:
    key = primary_metric(every)
    found = {run.arm: run for run in every.usable if run.seed == seed and outcome(run, key) is not None}
    arms = dict.fromkeys(arm for sides in SIDES.values() for arm in sides)
    task = every.runs[0].config["task"]
    row: dict[str, Any] = {"regime": number, "task": task["name"], "absent": [a for a in arms if a not in found]}
    last = {arm: 100 * float(outcome(run, key) or 0.0) for arm, run in found.items()}
    nan = float("nan")
    row |= {name: last.get(on, nan) - last.get(off, nan) for name, (on, off) in SIDES.items()}
    row[AT_TOKENS], row["share of the tokens"] = at_equal_tokens(found, key)
    tokens = {arm: float(run.series("tokens_generated").max()) for arm, run in found.items()}
    row |= {f"tokens, {name}": tokens.get(on, nan) / tokens.get(off, nan) for name, (on, off) in SIDES.items()}
    return row | seen(found.get(SEEN_IN), int(task["max_response_tokens"]))


def at_equal_tokens(found: dict[str, Run], key: str) -> tuple[float, float]:
    """What dynamic sampling is worth in points where both sides have generated as many tokens, at the last registered
    mark that both have passed, and the share that the mark is of what the side without it generated; NaN without one.
    """
    on, off = SIDES["dynamic sampling"]
    if not {on, off} <= found.keys():
        return float("nan"), float("nan")
    marks = found[off].config["evaluation"]["at_tokens"]
    contrast = difference("", AT_TOKENS, "dynamic_sampling", on, off)
    passed = at_marks(Runs((found[on], found[off])), contrast, key, marks)
    if not passed:
        return float("nan"), float("nan")
    mark, gap = passed[-1]
    return 100 * gap.mean, mark / float(found[off].series("tokens_generated").max())


def seen(run: Run | None, limit: int) -> dict[str, float]:
    """The predictors, from the first step of a run; NaN without the run."""

    if run is None:
        return dict.fromkeys(PREDICTORS, float("nan"))

    def first(key: str) -> float:
        return float(run.series(key).get(1, float("nan")))

    return {name: of(first, limit) for name, of in PREDICTORS.items()}


def or_nothing(value: float) -> float:
    return 0.0 if np.isnan(value) else value


def kept(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The regimes that have what a technique's law needs."""
    return table.dropna(subset=[name, *PREDICTORS])


def left_out(table: pd.DataFrame) -> list[str]:
    """A line for each regime that is left out for a technique."""
    lines = []
    for _, row in table.iterrows():
        if names := [name for name in TECHNIQUES if row["regime"] not in set(kept(table, name)["regime"])]:
            why = f"no result of {', '.join(row['absent'])}" if row["absent"] else "it was not measured"
            lines.append(f"regime {row['regime']:02} is left out for {', '.join(names)}: {why}")
    return lines


def within(values: np.ndarray | pd.Series, tasks: pd.Series) -> np.ndarray:
    """Values less the mean of their task."""
    series = pd.Series(np.asarray(values, dtype=float), index=tasks.index)
    return (series - series.groupby(tasks).transform("mean")).to_numpy()


def design(table: pd.DataFrame, predictor: str | None) -> np.ndarray:
    """A column for each task, and one for the predictor: [regimes, 3 or 4]."""
    columns = [table["task"] == task for task in TASKS] + ([] if predictor is None else [table[predictor]])
    return np.column_stack(columns).astype(float)


def fitted(table: pd.DataFrame, name: str, predictor: str | None) -> Law:
    """Least squares."""
    found = np.linalg.lstsq(design(table, predictor), table[name].to_numpy(), rcond=None)[0]
    intercepts = dict(zip(TASKS, map(float, found), strict=False))
    return Law(intercepts, predictor, float(found[-1])) if predictor else Law(intercepts)


def left_out_error(table: pd.DataFrame, name: str, predictor: str | None) -> float:
    """The sum of squares of a law's errors on regimes that are left out of its fit, one at a time.

    Infinite where a fit does not decide the line: the predictor is the same in all regimes of a task that are left.
    """
    columns = design(table, predictor)
    hat = columns @ np.linalg.pinv(columns)
    influence = np.diag(hat)
    if np.linalg.matrix_rank(columns) < columns.shape[1] or influence.max() > 1 - 1e-9:
        return float("inf")
    # Of least squares, the error on a regime that is left out is its residual / (1 - its influence).
    errors = (table[name].to_numpy() - hat @ table[name].to_numpy()) / (1 - influence)
    return float(errors @ errors)


def chosen(table: pd.DataFrame, name: str) -> Law:
    """The law with the least error on regimes that are left out of its fit.

    Raises StudyError: a task has too few regimes.
    """
    if table["task"].value_counts().reindex(TASKS, fill_value=0).min() < LEAST:
        raise StudyError(f"{name}: fewer than {LEAST} regimes of a task have what its law needs")
    return fitted(table, name, min([None, *PREDICTORS], key=lambda predictor: left_out_error(table, name, predictor)))


def skill(law: Law, means: Law, worth: np.ndarray, table: pd.DataFrame) -> float:
    """1: the law is never wrong; 0: it errs as much as the first half's means of the tasks."""
    return float(1 - ((law(table) - worth) ** 2).sum() / ((means(table) - worth) ** 2).sum())


def p_value(law: Law, worth: np.ndarray, table: pd.DataFrame, rng: np.random.Generator, draws: int = DRAWS) -> float:
    """One-sided: how often the law's predictions would agree as well if they were dealt at random to the regimes of
    their task. A law that is the mean of the task has 1.
    """
    said = within(law(table), table["task"])
    observed, dealt = float(said @ worth), np.zeros(draws)
    for rows in table.reset_index().groupby("task").indices.values():
        dealt += rng.permuted(np.tile(said[rows], (draws, 1)), axis=1) @ worth[rows]
    return float((1 + (dealt >= observed - 1e-9).sum()) / (1 + draws))


def followed(law: Law, name: str, worth: np.ndarray, table: pd.DataFrame) -> np.ndarray:
    """Points that a regime gains where the law decides whether the technique is on, against DAPO as printed."""
    on = law(table) > 0
    return np.where(on, worth, 0.0) if name == "overlong filtering" else np.where(on, 0.0, -worth)


def laws_of(table: pd.DataFrame) -> dict[str, Any]:
    """The law of each technique, and the means of the tasks that it is compared with."""
    return {
        name: {"law": chosen(rows, name)._asdict(), "means": fitted(rows, name, None)._asdict()}
        for name in TECHNIQUES
        for rows in [kept(table, name)]
    }


def scores(laws: dict[str, Any], second: pd.DataFrame, draws: int = DRAWS) -> pd.DataFrame:
    """Each technique's law on the second half."""
    rng, found = np.random.default_rng(0), []
    for name in TECHNIQUES:
        table = kept(second, name)
        worth, law, means = table[name].to_numpy(), Law(**laws[name]["law"]), Law(**laws[name]["means"])
        found.append(
            {
                "technique": name,
                "regimes": len(worth),
                "law": f"{law.slope:+.1f} x {law.predictor}" if law.predictor else "the mean of the task",
                "mean": worth.mean(),
                "spread within tasks": _spread(table, name),
                "skill": skill(law, means, worth, table),
                "p": p_value(law, worth, table, rng, draws),
                "gain of following it": followed(law, name, worth, table).mean(),
                "gain of following the means": followed(means, name, worth, table).mean(),
            }
        )
    rows = pd.DataFrame(found).set_index("technique")
    return rows.assign(adjusted=holm(rows["p"].tolist()))


def _spread(table: pd.DataFrame, name: str) -> float:
    """The standard deviation of a technique's worth within tasks."""
    apart = within(table[name], table["task"])
    return float((apart @ apart / max(1, len(apart) - table["task"].nunique())) ** 0.5)


def repeated(every: pd.DataFrame, one: pd.DataFrame, two: pd.DataFrame) -> pd.Series:
    """The share of a technique's variance within tasks that a second base policy of the same regime repeats.

    every: all regimes; one, two: those that were run twice, from either base policy.
    """
    shares = {}
    for name in TECHNIQUES:
        noise = float(((one[name] - two[name]) ** 2).mean()) / 2
        shares[name] = 1 - noise / _spread(every.dropna(subset=name), name) ** 2
    return pd.Series(shares, name="repeated share")


def manifests(regimes: Iterable[int]) -> dict[str, str]:
    """The digest of the manifest, which has those of the packed tables, of each regime."""
    return {f"{number:02}": sum_of(PACKED / f"{number:02}" / MANIFEST) for number in regimes}


def freeze() -> dict[str, Any]:
    """What laws.json holds. Raises StudyError: a regime of the second half has started, or one of the first cannot be
    read.
    """
    for number in SECOND:
        for folder in (PACKED / f"{number:02}", UNPACKED / f"transfer_drawn_{number:02}"):
            if folder.exists():
                raise StudyError(f"{folder} exists: laws are frozen before any regime of the second half has started")
    table = measured(FIRST)
    print(*left_out(table), sep="\n", file=sys.stderr)
    return {"manifests": manifests(FIRST), "laws": laws_of(table)}


def report() -> str:
    """The scores of laws.json. Raises StudyError: it was made of other cells than those that are there."""
    frozen = json.loads(LAWS.read_text(encoding="utf-8"))
    if changed := [number for number, digest in manifests(FIRST).items() if frozen["manifests"].get(number) != digest]:
        raise StudyError(f"{LAWS}: made of other cells than those in {PACKED} now: regimes {', '.join(changed)}")
    first, second = measured(FIRST), measured(SECOND)
    every = pd.concat([first, second], ignore_index=True)
    one = every[every["regime"].isin(TWICE)].reset_index(drop=True)
    shares = repeated(every, one, measured(TWICE, SECOND_SEED))
    used = every[[column for column in every if str(column).startswith("tokens, ")] + ["share of the tokens"]]
    text = scores(frozen["laws"], second).join(shares).round(3).to_string()
    return "\n\n".join(["\n".join(left_out(every)), text, used.describe().loc[["min", "50%", "max"]].T.to_string()])


def main() -> int:
    """Runs the command; returns its exit code."""
    try:
        if sys.argv[1:] == ["freeze"]:
            LAWS.write_text(json.dumps(freeze(), indent=2) + "\n", encoding="utf-8")
        else:
            print(report())
    except UserError as reason:
        print(f"refused: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
