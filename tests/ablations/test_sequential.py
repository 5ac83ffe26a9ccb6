"""Several looks at one study: the error is counted over sign flips, by hand and against brute force."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import write_run

from ablations.compare.contrasts import Contrast, compare
from ablations.compare.effects import counted_values, registered_effects
from ablations.compare.sequential import (
    decisions,
    first_rejection,
    interval,
    median_interval,
    planned_looks,
    rejections,
)
from ablations.compare.statistics import flips
from ablations.designs import Arm
from ablations.read.registration import Family, Plan, Registered
from ablations.read.runs import load
from ablations.techniques import DAPO


def by_brute_force(values: list[float], looks: list[int], level: float) -> int | None:
    """Lists every sign pattern, and lets each look reject as many patterns as alpha allows up to it."""
    patterns = [np.array(signs) * values for signs in itertools.product((1.0, -1.0), repeat=len(values))]
    rejected: set[int] = set()
    for look in looks:
        size = [abs(float(p[:look].sum())) for p in patterns]
        allowed = int(level * look / looks[-1] * len(patterns) + 1e-9) - len(rejected)
        order = sorted((i for i in range(len(patterns)) if i not in rejected), key=lambda i: -size[i])
        while allowed > 0 and allowed < len(order) and np.isclose(size[order[allowed - 1]], size[order[allowed]]):
            allowed -= 1  # ties at the bound are left out together
        rejected |= set(order[: max(allowed, 0)])
        if 0 in rejected:
            return look
    return None


@pytest.mark.parametrize("level", [0.05, 0.2, 0.5])
def test_the_boundaries_are_those_of_all_sign_patterns(level: float) -> None:
    rng = np.random.default_rng(4)
    studies = rng.normal(0.6, 1, (60, 9))
    expected = [by_brute_force(list(study), [5, 7, 9], level) or 0 for study in studies]
    assert list(rejections(studies, [5, 7, 9], level)) == expected
    assert len(set(expected)) > 1


def test_six_equal_differences_are_rejected_at_one_level_in_thirty_two() -> None:
    assert first_rejection([1.0] * 6, [6], 0.0313) == 6  # both patterns with one sign: 2 of 64
    assert first_rejection([1.0] * 6, [6], 0.0312) is None
    assert first_rejection([1.0] * 6, [6, 12], 0.0313) is None  # half of it is for the second look
    assert first_rejection([1.0] * 5, [6], 0.9) is None  # not yet reached


def test_a_family_takes_holms_levels_at_each_look() -> None:
    clear, faint = np.linspace(1, 2, 12), np.array([1.0] * 10 + [-1.0] * 2)
    assert first_rejection(faint, [12], 0.05) == 12
    assert first_rejection(faint, [12], 0.025) is None
    assert decisions([faint, faint], [12], 0.05) == [None, None]
    assert decisions([clear, faint], [12], 0.05) == [12, 12]  # once the first is decided, all of alpha is left


@pytest.mark.parametrize("values", [13, 24, 48])
def test_beyond_twelve_values_the_flips_are_a_group(values: int) -> None:
    """The product of any two of them is one of them, or its negative, which has the same absolute sum."""
    found = {tuple(row * row[0]) for row in flips(values).astype(int).tolist() for row in [np.array(row)]}
    assert len(found) == 2**11
    for one, two in itertools.product(random.Random(values).sample(sorted(found), 20), repeat=2):
        product = np.array(one) * np.array(two)
        assert tuple(product * product[0]) in found


@pytest.mark.parametrize("looks", [(12,), (8, 12)])
def test_the_interval_of_the_median_holds_where_one_base_policy_in_six_takes_off(looks: tuple[int, ...]) -> None:
    """400 studies: that of the mean misses the mean in a fifth of them, as most have no base policy that took off."""
    rng = np.random.default_rng(8)
    drawn = np.where(rng.random((400, 12)) < 1 / 6, 5.0, 0.0) + rng.normal(0, 0.3, (400, 12))
    values = [drawn[i, : first_rejection(drawn[i], looks, 0.05) or 12] for i in range(400)]
    median, mean = 0.3 * stats.norm.ppf(0.6), 5 / 6  # (5/6) F(x / 0.3) = 1/2
    found = [median_interval(x, looks) or (np.inf, -np.inf) for x in values]
    assert np.mean([low <= median <= high for low, high in found]) >= 0.95 - 2 * (0.05 * 0.95 / 400) ** 0.5
    assert any(np.isfinite(high - low) for low, high in found)
    assert np.mean([bool(first_rejection(x - mean, looks, 0.05)) for x in values]) > 0.1


def test_an_interval_is_of_the_looks_that_were_made() -> None:
    low, high = interval(np.linspace(0.5, 1.5, 8), [6, 8, 10]) or (0, 0)
    assert 0 < low < 1 < high
    assert interval([1.0, 2.0], [6, 12]) is None


def test_a_look_waits_for_the_first_registered_seeds_and_a_late_pair_changes_no_verdict(tmp_path: Path) -> None:
    """Seed 3 trains on another machine, or failed: nothing behind it counts before it is there."""
    on, off = Arm(DAPO), Arm(DAPO - {"clip_higher"})
    weights = {on.name: 1.0, off.name: -1.0}
    contrast = Registered("clip_higher", "clip_higher", weights, "eval/chain_sum/avg@4", "accuracy")
    plan = Plan(
        "table1", contrast.outcome, on.name, (on.name, off.name), tuple(range(12)),
        families=(Family("main effects", 0.05, (contrast,)),), stopping={"until": "decided", "looks": (8, 12)},
    )  # fmt: skip

    def verdict() -> tuple[str, int]:
        (effect,) = registered_effects(load(tmp_path), plan, on.name, contrast.outcome)
        return effect.verdict, effect.estimate.n

    for seed in (0, 1, 2, 4, 5, 6, 7, 8):
        for arm in (on, off):
            write_run(tmp_path, arm, seed, steps=6, every=3, effects={"clip_higher": 0.2})
    assert verdict() == ("at 3 of 8", 3)
    write_run(tmp_path, on, 3, steps=6, every=3, effects={"clip_higher": 0.2})
    assert verdict() == ("at 3 of 8", 3)  # half a pair is none
    write_run(tmp_path, off, 3, steps=6, every=3)
    assert verdict() == ("up at 8 of 12", 8)


@pytest.mark.parametrize("late", [0, 5, 7])
def test_the_error_of_looks_is_kept_whichever_pair_is_late(late: int) -> None:
    """Null studies of 24 pairs, one of the first eight late: rejected before or after it, exactly where in order."""
    looks, rng = planned_looks(24), np.random.default_rng(late)
    contrast = Contrast("f", "a", None, {"x": 1.0, "y": -1.0})
    for _ in range(200):
        values = rng.normal(size=24)
        seeds = [seed for seed in range(24) if seed != late]
        short = compare(contrast, {"x": dict(zip(seeds, values[seeds], strict=True)), "y": dict.fromkeys(seeds, 0.0)})
        whole = compare(contrast, {"x": dict(enumerate(values)), "y": dict.fromkeys(range(24), 0.0)})
        plan = Plan("s", seeds=tuple(range(24)), stopping={"until": "decided", "looks": looks})
        assert counted_values(whole, plan).tolist() == values.tolist()
        assert decisions([counted_values(short, plan)], looks, 0.05) == [None]
