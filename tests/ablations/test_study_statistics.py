"""Statistics against hand-worked numbers, and their calibration on simulated studies."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ablations.compare.statistics import (
    holm,
    holm_attainable,
    paired_t_power,
    per_base,
    seeds_needed,
    sign_flip_p,
    smallest_effect,
    t_interval,
)

floats = st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=1, max_size=9)


def test_one_seed_has_no_interval_and_finds_no_effect_and_nan_is_refused() -> None:
    estimate = t_interval([0.3])
    assert (estimate.mean, estimate.low, estimate.high, estimate.n) == (0.3, None, None, 1)
    assert smallest_effect(1) is None
    with pytest.raises(ValueError, match="finite"):
        t_interval([1.0, float("nan")])


def brute_force(x: list[float]) -> float:
    sums = [
        abs(sum(s * v for s, v in zip(signs, x, strict=True))) for signs in itertools.product((1, -1), repeat=len(x))
    ]
    return sum(s >= abs(sum(x)) - 1e-5 * sum(map(abs, x)) for s in sums) / len(sums)


@given(floats)
def test_sign_flip_test_counts_every_assignment_of_signs(x: list[float]) -> None:
    assert sign_flip_p(x) == pytest.approx(brute_force(x))


def test_ties_between_shares_survive_the_float32_of_packed_cells() -> None:
    """Shares of 3,840 answers tie as exact fractions do, wherever they are stored."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(900, 1300, (2, 12))
        packed = (counts / 3840).astype(np.float32).astype(float)
        assert sign_flip_p(packed[0] - packed[1]) == sign_flip_p((counts[0] - counts[1]).astype(float))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(a >= b - 1e-12 for a, b in zip(adjusted, p, strict=True))
    assert all(adjusted[i] <= adjusted[j] + 1e-12 for i in range(len(p)) for j in range(len(p)) if p[i] <= p[j])
    assert min(adjusted) == pytest.approx(min(1, len(p) * min(p)))


MIXED = st.lists(st.tuples(st.integers(2, 12), st.floats(0, 1)), min_size=1, max_size=8)


@given(MIXED)
def test_holm_of_attainable_p_is_never_above_holm_nor_below_the_p_itself(tests: list[tuple[int, float]]) -> None:
    values = [n for n, _ in tests]
    p = [max(1, np.ceil(share * 2 ** (n - 1))) / 2 ** (n - 1) for n, share in tests]
    adjusted = holm_attainable(p, values)
    assert all(own <= found + 1e-12 <= other + 2e-12 for own, found, other in zip(p, adjusted, holm(p), strict=True))


def test_holm_of_attainable_p_errs_in_at_most_five_percent_of_families_without_an_effect() -> None:
    """Two tests of eight values and six of four: 3,000 families."""
    rng, values = np.random.default_rng(3), [8, 8, 4, 4, 4, 4, 4, 4]
    families = [[sign_flip_p(rng.normal(0, 1, n)) for n in values] for _ in range(3000)]
    wrong = np.mean([min(holm_attainable(p, values)) <= 0.05 for p in families])
    assert 0.02 < wrong <= 0.06  # Holm itself: below 0.01


@pytest.mark.parametrize(("n", "effect"), [(4, 2.12), (10, 1.00)])
def test_smallest_effect_agrees_with_simulated_power(n: int, effect: float) -> None:
    assert smallest_effect(n) == pytest.approx(effect, abs=0.02)
    x = np.random.default_rng(0).normal(effect, 1, (20_000, n))
    found = np.mean(np.abs(stats.ttest_1samp(x, 0, axis=1).statistic) > stats.t.ppf(0.975, n - 1))
    assert paired_t_power(effect, n) == pytest.approx(found, abs=0.01)


def test_seeds_needed_is_the_inverse_of_the_smallest_effect() -> None:
    for n in (4, 7, 20):
        assert seeds_needed(smallest_effect(n) or 0) == n
    assert seeds_needed(0.0) is None


def test_seeds_of_a_base_are_averaged_and_seeds_of_one_base_are_the_units() -> None:
    values, bases = [1.0, 3.0, 11.0, 13.0, 12.0], ["7", "7", "8", "8", "8"]
    assert per_base(values, bases) == pytest.approx([2, 12])
    estimate = t_interval(per_base(values, bases))
    assert (estimate.mean, estimate.n) == (7, 2)
    assert estimate.high == pytest.approx(7 + stats.t.ppf(0.975, 1) * 50**0.5 / 2**0.5)  # sd of 2 and 12
    assert per_base(values, ["7"] * 5) == pytest.approx(values)
    assert per_base(np.arange(6.0).reshape(3, 2), ["a", "b", "a"]).tolist() == [[2, 3], [2, 3]]


def test_the_interval_over_bases_covers_the_population_where_the_effect_differs_between_bases() -> None:
    rng = np.random.default_rng(3)
    bases = [str(seed % 3) for seed in range(12)]
    studies = rng.normal(0.5, 1.5, (1000, 3))[:, [int(base) for base in bases]] + rng.normal(0, 1, (1000, 12))
    found = [t_interval(per_base(x, bases)) for x in studies]
    assert 0.93 <= np.mean([e.low <= 0.5 <= e.high for e in found]) <= 0.97  # type: ignore[operator]
    as_if_bases = [t_interval(x) for x in studies]
    assert np.mean([e.low <= 0.5 <= e.high for e in as_if_bases]) < 0.8  # type: ignore[operator]
