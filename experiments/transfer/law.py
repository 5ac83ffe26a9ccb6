"""Freezes the laws on the first half of the regimes, and scores them on the second.

    python experiments/transfer/law.py freeze     # writes laws.json from regimes 0 to 23; before the others have run
    python experiments/transfer/law.py            # scores laws.json on regimes 24 to 47

A law says what dynamic sampling is worth in a regime (points of held-out accuracy with it minus without it, the mean
over the regime's three pairs of runs) by the regime's task and by what its first rollout step shows: the mean of the
task, or a line over one of PREDICTORS with one slope and an intercept for each task. Everything is measured within
tasks. Across three tasks almost any number goes with the worth of almost any technique.
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
SEEDS = (400, 500, 600)
"""Regime n starts from the base policies 400 + n, 500 + n and 600 + n of its recipe: three pairs of runs."""
PAIRS = 2
"""Pairs that a regime needs at least: one has no variance, by which the noise of a regime's worth is known."""
ON, OFF = "dapo", "dapo-dynamic_sampling"
"""The sides of a pair. The first step of OFF is read for the predictors: it trains on every group that it samples."""
WORTHS = ("at equal steps", "at equal tokens")
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


def measured(regimes: Iterable[int]) -> pd.DataFrame:
    """A row a base policy of a regime: the regime's task, what dynamic sampling is worth in points, and the predictors.

    NaN: an arm that it needs has no result; `absent` names those arms.
    """
    rows = []
    for number in regimes:
        every = read(number)
        rows += [_pair(number, every, seed + number) for seed in SEEDS]
    return pd.DataFrame(rows)


def _pair(number: int, every: Runs, seed: int) -> dict[str, Any]:
    key = primary_metric(every)
    ended = {run.arm: run for run in every.usable if run.seed == seed and outcome(run, key) is not None}
    task = every.runs[0].config["task"]
    row: dict[str, Any] = {"regime": number, "task": task["name"], "seed": seed}
    row["absent"] = [arm for arm in (ON, OFF) if arm not in ended]
    if row["absent"]:
        return row | dict.fromkeys((*WORTHS, "share of the tokens", "tokens", *PREDICTORS), float("nan"))
    on, off = ended[ON], ended[OFF]
    row["at equal steps"] = 100 * (float(outcome(on, key) or 0.0) - float(outcome(off, key) or 0.0))
    row["at equal tokens"], row["share of the tokens"] = at_equal_tokens(on, off, key)
    row["tokens"] = float(on.series("tokens_generated").max() / off.series("tokens_generated").max())
    return row | seen(off, int(task["max_response_tokens"]))


def at_equal_tokens(on: Run, off: Run, key: str) -> tuple[float, float]:
    """What dynamic sampling is worth in points where both sides have generated as many tokens, at the last registered
    mark that both have passed, and the share that the mark is of what the side without it generated; NaN without one.
    """
    marks = off.config["evaluation"]["at_tokens"]
    passed = at_marks(Runs((on, off)), difference("", "", "dynamic_sampling", ON, OFF), key, marks)
    if not passed:
        return float("nan"), float("nan")
    mark, gap = passed[-1]
    return 100 * gap.mean, mark / float(off.series("tokens_generated").max())


def seen(run: Run, limit: int) -> dict[str, float]:
    """The predictors, from the first step of a run."""

    def first(key: str) -> float:
        return float(run.series(key).get(1, float("nan")))

    return {name: of(first, limit) for name, of in PREDICTORS.items()}


def or_nothing(value: float) -> float:
    return 0.0 if np.isnan(value) else value


def kept(pairs: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row a regime that has PAIRS pairs at least: means over its pairs of the worth and of the predictors."""
    found = pairs.dropna(subset=[name, *PREDICTORS]).groupby(["regime", "task"], as_index=False)
    means = found[[name, *PREDICTORS]].mean()
    return means.assign(pairs=found.size()["size"]).query(f"pairs >= {PAIRS}").reset_index(drop=True)


def left_out(pairs: pd.DataFrame) -> list[str]:
    """A line for each run without a result, and for each regime that is left out of a law."""
    lines = [
        f"regime {row['regime']:02}: no result of {' and '.join(row['absent'])} from base policy {row['seed']}"
        for _, row in pairs.iterrows()
        if row["absent"]
    ]
    for name in WORTHS:
        missing = sorted({*pairs["regime"]} - {*kept(pairs, name)["regime"]})
        lines += [f"regime {number:02} is left out {name}: fewer than {PAIRS} pairs have it" for number in missing]
    return lines


def noise(pairs: pd.DataFrame, name: str) -> float:
    """The standard deviation of one pair's worth around that of its regime, over all regimes with two pairs or more."""
    worth = pairs.dropna(subset=[name, *PREDICTORS]).groupby("regime")[name]
    return float((worth.var() * (worth.size() - 1)).sum() / (worth.size() - 1).sum()) ** 0.5


def true_share(pairs: pd.DataFrame, name: str) -> float:
    """The share of the variance of regimes' worth within tasks that is not the noise of their pairs."""
    table = kept(pairs, name)
    return 1 - noise(pairs, name) ** 2 * float((1 / table["pairs"]).mean()) / spread(table, name) ** 2


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


def followed(law: Law, worth: np.ndarray, table: pd.DataFrame) -> np.ndarray:
    """Points that a regime gains where the law decides whether dynamic sampling is on, against DAPO as printed."""
    return np.where(law(table) > 0, 0.0, -worth)


def laws_of(pairs: pd.DataFrame) -> dict[str, Any]:
    """The law of each worth, and the means of the tasks that it is compared with."""
    return {
        name: {"law": chosen(table, name)._asdict(), "means": fitted(table, name, None)._asdict()}
        for name in WORTHS
        for table in [kept(pairs, name)]
    }


def scores(laws: dict[str, Any], second: pd.DataFrame, draws: int = DRAWS) -> pd.DataFrame:
    """Each law on the second half."""
    rng, found = np.random.default_rng(0), []
    for name in WORTHS:
        table = kept(second, name)
        worth, law, means = table[name].to_numpy(), Law(**laws[name]["law"]), Law(**laws[name]["means"])
        found.append(
            {
                "worth": name,
                "regimes": len(worth),
                "law": f"{law.slope:+.1f} x {law.predictor}" if law.predictor else "the mean of the task",
                "mean": worth.mean(),
                "spread within tasks": spread(table, name),
                "skill": skill(law, means, worth, table),
                "p": p_value(law, worth, table, rng, draws),
                "gain of following it": followed(law, worth, table).mean(),
                "gain of following the means": followed(means, worth, table).mean(),
            }
        )
    rows = pd.DataFrame(found).set_index("worth")
    return rows.assign(adjusted=holm(rows["p"].tolist()))


def spread(table: pd.DataFrame, name: str) -> float:
    """The standard deviation of regimes' worth within tasks."""
    apart = within(table[name], table["task"])
    return float((apart @ apart / max(1, len(apart) - table["task"].nunique())) ** 0.5)


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
    """The scores of laws.json. Raises StudyError: regimes have not run, or the laws are of other cells."""
    frozen = json.loads(LAWS.read_text(encoding="utf-8"))
    if changed := [number for number, digest in manifests(FIRST).items() if frozen["manifests"].get(number) != digest]:
        raise StudyError(f"{LAWS}: made of other cells than those in {PACKED} now: regimes {', '.join(changed)}")
    if missing := [number for number in SECOND if not (PACKED / f"{number:02}").exists()]:
        command = f"bash experiments/transfer/run.sh {missing[0]} {missing[-1]}"
        raise StudyError(f"{len(missing)} of the {len(SECOND)} regimes of the second half have not run: {command}")
    first, second = measured(FIRST), measured(SECOND)
    every = pd.concat([first, second], ignore_index=True)
    rows = scores(frozen["laws"], second)
    rows["noise of a pair"] = [noise(every, name) for name in WORTHS]
    rows["true share"] = [true_share(every, name) for name in WORTHS]
    used = every[["tokens", "share of the tokens"]].describe().loc[["min", "50%", "max"]].T
    return "\n\n".join(["\n".join(left_out(every)), rows.T.round(3).to_string(), used.to_string()])


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
