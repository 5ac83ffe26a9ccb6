"""Every number of report.json, computed again from the rows of the runs by numpy and scipy alone.

What the package measures of a run (a mean of last points, a pair, a base policy, an interval, a flip of signs) is
written down here a second time, from the pages' words and not from its code. Then each number is altered once, and the
comparison must see it.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats
from synthetic_runs import write_study

from ablations.border import is_share
from ablations.commands.report import main as report
from ablations.read.outcomes import in_words, is_outcome, unit
from ablations.read.registration import Plan, register

METRIC, ARMS, SEEDS, SHOWN = "eval/chain_sum/avg@4", ("dapo", "dapo-clip_higher"), range(7), 8
ELSEWHERE = {
    ("tables", "equal_tokens"): "test_equal_budget.py",
    ("tables", "cost", "needed to its control's level"): "test_equal_budget.py",
    ("tables", "health"): "test_study_report.py",
    ("exercised",): "test_advice.py",
    ("schema",): "test_json_answers.py",
}
"""Numbers that are computed again by another file of tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("numbers")
    register(base / "pair", Plan("pair", metric=METRIC, seeds=tuple(SEEDS)))
    found = write_study(base, "pair", seeds=tuple(SEEDS), steps=12, every=3)
    assert report([str(found)]) == 0
    return found


@pytest.fixture(scope="module")
def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report" / "report.json").read_text())


Rows = dict[tuple[str, int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rows(folder: Path) -> Rows:
    def of(arm: str, seed: int) -> list[dict[str, Any]]:
        lines = (folder / arm / f"seed_{seed}" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return {(arm, seed): of(arm, seed) for arm in ARMS for seed in SEEDS}


def last(run: list[dict[str, Any]], key: str) -> float:
    """A third of the points after step 0, at most three, are averaged."""
    values = [row[key] for row in run if row["step"] > 0 and row.get(key) is not None]
    return float(np.mean(values[-max(1, min(3, len(values) // 3)) :]))


def differences(rows: Rows, key: str) -> np.ndarray:
    return np.array([last(rows["dapo", seed], key) - last(rows["dapo-clip_higher", seed], key) for seed in SEEDS])


def interval(values: np.ndarray) -> tuple[float, float]:
    return stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))


def flips(count: int) -> np.ndarray:
    return np.array(list(product((1.0, -1.0), repeat=count)))


def sign_flip(values: np.ndarray) -> float:
    means = np.abs(flips(len(values)) @ values) / len(values)
    return float(np.mean(means >= abs(values.mean()) - 1e-12))


def t_of(values: np.ndarray) -> np.ndarray:
    return values.mean(axis=-2) / (values.std(axis=-2, ddof=1) / values.shape[-2] ** 0.5)


def smallest(values: np.ndarray) -> float:
    """The effect that as many pairs find with a power of 0.8 in a t-test at 5 %, where all pairs spread like these."""
    n = len(values)
    critical = stats.t.ppf(0.975, n - 1)

    def lacking(effect: float) -> float:
        shift = effect * n**0.5
        return stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift) - 0.8

    return float(optimize.brentq(lacking, 0.5, 2.5)) * values.std(ddof=1)


def text(key: str, value: float, signed: bool = True) -> str:
    if is_share(key):
        return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"
    return f"{value:+.3g}" if signed else f"{value:.3g}"


def median_text(key: str, values: np.ndarray) -> str:
    """With the order statistics between which the median lies in 95 % of samples, by the binomial distribution."""
    ranked, n = np.sort(values), len(values)
    cut = next((k for k in range(n // 2, 0, -1) if 2 * stats.binom.cdf(k - 1, n, 0.5) <= 0.05), 0)
    shown = text(key, float(np.median(values)))
    return f"{shown} [{text(key, ranked[cut - 1])}, {text(key, ranked[n - cut])}]" if cut else shown


def effect(rows: Rows, key: str) -> dict[str, Any]:
    values = differences(rows, key)
    low, high = interval(values)
    return {
        "contrast": {"weights": {"dapo": 1.0, "dapo-clip_higher": -1.0}},
        "estimate": {"mean": values.mean(), "low": low, "high": high, "n": len(values), "sd": values.std(ddof=1)},
    }


def expected(rows: Rows, written: Mapping[str, Any]) -> dict[str, Any]:
    """report.json; of what is no number only what the comparison needs."""
    own = {arm: np.array([last(rows[arm, seed], METRIC) for seed in SEEDS]) for arm in ARMS}
    p = sign_flip(differences(rows, METRIC))
    shared = effect(rows, METRIC) | {"p": p}
    registered = shared | {"adjusted": p, "alpha": 0.05}
    # The largest |t| over all outcomes, for each flip of whole bases.
    keys = [key for key in rows["dapo", 0][-1] if is_outcome(key)]
    keys = [key for key in keys if differences(rows, key).std() > 1e-9]
    table = np.stack([differences(rows, key) for key in keys], axis=1)
    largest = np.abs(t_of(flips(len(table))[:, :, None] * table)).max(axis=1)
    by_words = {in_words(key): key for key in keys}
    ends = (np.mean([rows[arm, seed][-1]["tokens_generated"] for seed in SEEDS]) for arm in ARMS)
    spent = [float(f"{end:.4g}") for end in ends]  # shown to four digits
    shown = []
    for row in written["tables"]["effects"]:
        key = by_words[row["outcome"]]
        values, first = differences(rows, key), row["kind"].startswith("registered")
        low, high = interval(values)
        highest = np.mean(largest >= abs(t_of(values[:, None])[0]) * (1 - 1e-9))
        same = int(max((values > 0).sum(), (values < 0).sum()))
        shown.append(
            {
                "n": str(len(values)),
                "same sign": f"{same} of {len(values)}" if first else "–",
                "median": median_text(key, values) if first else "–",
                "difference": f"{text(key, values.mean())} {unit(key)}".rstrip(),
                "interval": f"[{text(key, low)}, {text(key, high)}]",
                "p": f"{p:.3g}" if first else "–",
                "adjusted p": f"{p if first else highest:.3g}",
                "tokens": f"{spent[0]:,.0f} / {spent[1]:,.0f}",
                "can see": text(key, smallest(values), signed=False),
                "kind": row["kind"],
            }
        )
    axes = ("gradient_step", "tokens_generated", "wall_s")
    used = [
        np.exp(np.mean([np.log(rows["dapo", s][-1][a] / rows["dapo-clip_higher", s][-1][a]) for s in SEEDS]))
        for a in axes
    ]
    means = [
        {"runs": str(len(SEEDS)), "n": str(len(SEEDS)), "mean": text(METRIC, values.mean(), signed=False)}
        | dict(zip(("low", "high"), (text(METRIC, end, signed=False) for end in interval(values)), strict=True))
        | {"below its base": f"{sum(values < [rows[arm, s][0][METRIC] for s in SEEDS])} of {len(SEEDS)}"}
        for arm, values in own.items()
    ]
    return {
        "outcomes": [{"seed": seed, "base": str(seed), "last": own[arm][seed]} for arm in ARMS for seed in SEEDS],
        "comparisons": [
            shared
            | {
                "seeds": list(SEEDS),
                "bases": [str(seed) for seed in SEEDS],
                "differences": differences(rows, METRIC).tolist(),
            }
        ],
        "effects": [registered],
        "tables": {"effects": shown, "cost": [{"used": f"x{ratio:.2f}"} for ratio in used], "outcomes": means},
    }


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Numbers, and texts with a digit, with their places."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from leaves(value, (*path, place))
    elif (isinstance(tree, (int, float)) and not isinstance(tree, bool)) or (
        isinstance(tree, str) and any(character.isdigit() for character in tree)
    ):
        yield path, tree


def is_name(path: tuple[Any, ...]) -> bool:
    """Names with a digit in them, and what another file of tests computes again."""
    names = tuple(part for part in path if isinstance(part, str))
    if any(names[: len(place)] == place for place in ELSEWHERE):
        return True
    return names[-1] in ("study", "metric", "outcome", "words", "arm", "comparison", "budget")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return bool(np.isclose(one, other, rtol=1e-6, atol=1e-12))


def test_every_number_of_a_report_is_that_of_the_rows(rows: Rows, written: dict[str, Any]) -> None:
    again = dict(leaves(expected(rows, written)))
    found = {path: value for path, value in leaves(written) if not is_name(path)}
    assert found.keys() - again.keys() == set()
    assert {path: (found.get(path), value) for path, value in again.items() if not same(found.get(path), value)} == {}


def test_a_number_of_a_report_that_is_altered_is_seen(rows: Rows, written: dict[str, Any]) -> None:
    again = dict(leaves(expected(rows, written)))
    found = [path for path, _ in leaves(written) if not is_name(path)]
    assert len(found) > 100
    for path in found:
        altered = copy.deepcopy(written)
        place = altered
        for part in path[:-1]:
            place = place[part]
        value = place[path[-1]]
        # The last digit of a text, a thousandth of a number.
        if isinstance(value, str):
            at = max(index for index, character in enumerate(value) if character.isdigit())
            place[path[-1]] = value[:at] + str((int(value[at]) + 1) % 10) + value[at + 1 :]
        else:
            place[path[-1]] = value * 1.001 if value else 1
        seen = {other for other, number in leaves(altered) if other in again and not same(number, again[other])}
        assert path in seen, path
