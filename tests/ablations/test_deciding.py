"""The mathematics of `decide`: worked by hand, held against numerical integration in float64, and invariant."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from ablations.compare import student
from ablations.compare.deciding import (
    FLAT,
    SHIPPED,
    Belief,
    Evidence,
    Prior,
    belief,
    choose,
    paired,
    pooled,
    unpaired,
)

LEDGERS = [
    ([0.012, -0.004], Prior(1.0, 0.01, 4.0)),
    ([1.0, 2.5, -0.5, 3.0], SHIPPED),
    ([-3.0, -1.0, -2.2], Prior(0.25, 2.0, 3.0)),
    ([0.4, 0.1, 0.9, -0.2, 0.3, 0.2], Prior(2.0)),
    ([5.0, -1.0, 4.0, 2.0], FLAT),
]


# By hand -------------------------------------------------------------------------------------------------------------


def test_two_pairs_without_a_prior_are_students_t_with_one_degree_of_freedom():
    now = belief(paired([1.0, 3.0]), FLAT)
    assert (now.mean, now.scale, now.freedom) == (2.0, 1.0, 1.0)  # sd sqrt(2), over sqrt(2)
    assert now.wrong_sign == pytest.approx(0.5 - math.atan(2) / math.pi)  # the Cauchy distribution
    assert math.isinf(now.regret())
    assert choose(now, price=0.1).more == 1  # with the third pair there are two degrees of freedom


def test_the_shipped_prior_draws_one_pair_half_way_to_zero():
    now = belief(paired([4.0]))
    # One prior pair of 0: mean 2, squares 1 * 1 / 2 * 16 = 8 with one degree of freedom, scale sqrt(8 / 2) = 2.
    assert (now.mean, now.freedom, now.scale) == (2.0, 1.0, 2.0)
    assert now.wrong_sign == pytest.approx(0.25)


def test_with_two_degrees_of_freedom_the_regret_has_a_closed_form():
    # E[(T - z)^+] of t_2 is (sqrt(2 + z^2) - z) / 2: at z = 1, (sqrt(3) - 1) / 2.
    now = Belief(mean=3.0, pairs=4.0, sd=6.0, freedom=2.0)
    assert now.regret() == pytest.approx(3.0 * (math.sqrt(3) - 1) / 2)
    # Twelve further pairs: the mean then spreads by 6 sqrt(12 / (4 * 16)) = 2.598, z = 1.1547.
    z = 3 / 2.598076211353316
    assert now.gain(12) == pytest.approx(2.598076211353316 * (math.sqrt(2 + z * z) - z) / 2)


def test_unpaired_runs_are_worth_the_pairs_of_the_same_precision():
    # Two against four runs: 2 * 2 * 4 / 6; sums of squares 2 and 20, of a difference twice as much.
    assert unpaired([1.0, 3.0], [0.0, 2.0, 4.0, 6.0]) == Evidence(8 / 3, -1.0, 44.0, 4)
    t = stats.ttest_ind([1.0, 3.0], [0.0, 2.0, 4.0, 6.0])
    now = belief(unpaired([1.0, 3.0], [0.0, 2.0, 4.0, 6.0]), FLAT)
    assert 2 * now.wrong_sign == pytest.approx(t.pvalue)


def test_a_change_that_does_nothing_is_discarded_at_once():
    assert choose(belief(paired([0.0, 0.0])), price=0.0).action == "discard"


def test_a_single_zero_is_not_taken_for_certainty():
    assert choose(belief(paired([0.0])), price=0.0).action == "more"


def test_a_price_above_every_gain_ends_it_and_a_price_of_nothing_never_does():
    now = belief(paired([1.0, -0.5, 0.8]))
    assert choose(now, price=10.0).action == "keep"
    assert choose(now, price=0.0, most=7).more == 7
    assert choose(now, price=0.0, most=0).action == "keep"


def test_the_noise_of_other_changes_is_lent_to_a_change_with_one_pair():
    others = [paired([1.0, 3.0]), paired([0.0, 0.0, 3.0])]  # squares 2 and 6 with 1 and 2 degrees of freedom
    assert pooled([*others, paired([9.0])], 2) == Prior(1.0, math.sqrt(8 / 3), 3.0)
    assert pooled([paired([9.0])], 0) == SHIPPED
    assert math.isfinite(belief(paired([9.0]), pooled([*others, paired([9.0])], 2)).regret())


# The reference -------------------------------------------------------------------------------------------------------


def posterior(differences: list[float], prior: Prior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Density of (delta, log sigma) on a grid, from prior times likelihood, with nothing of the conjugate algebra."""
    x = np.asarray(differences)
    spread = x.std() + abs(x.mean()) + (prior.sd or 0.0)
    logs = np.linspace(math.log(spread) - 7, math.log(spread) + 9, 321)
    delta = spread * np.sinh(np.linspace(-11, 11, 4000))  # an even number: no point is 0, where the loss has its kink
    sigma = np.exp(logs)[None]
    density = -len(x) * np.log(sigma) - ((x[:, None, None] - delta[None, :, None]) ** 2).sum(axis=0) / (2 * sigma**2)
    if prior.pairs:
        density += -np.log(sigma) - prior.pairs * delta[:, None] ** 2 / (2 * sigma**2)
    if prior.sd is not None:  # scaled inverse chi-squared, as a density of log sigma
        density += -prior.weight * np.log(sigma) - prior.weight * prior.sd**2 / (2 * sigma**2)
    density = np.exp(density - density.max())
    weights = density * np.gradient(delta)[:, None]
    return delta, np.exp(logs), weights / weights.sum()


@pytest.mark.parametrize(("differences", "prior"), LEDGERS)
def test_the_posterior_equals_numerical_integration(differences, prior):
    delta, _, weights = posterior(differences, prior)
    marginal, now = weights.sum(axis=1), belief(paired(differences), prior)
    wrong = -np.sign(now.mean) * delta
    assert now.wrong_sign == pytest.approx(float(marginal[wrong > 0].sum()), rel=1e-3)
    assert now.mean == pytest.approx(float(marginal @ delta), rel=2e-3)
    assert now.regret() == pytest.approx(float(marginal @ np.maximum(wrong, 0)), rel=1e-3)
    low, high = now.interval()
    assert np.interp([low, high], delta, np.cumsum(marginal)) == pytest.approx([0.025, 0.975], abs=2e-3)


@pytest.mark.parametrize("further", [1, 5])
@pytest.mark.parametrize(("differences", "prior"), LEDGERS)
def test_the_gain_of_further_pairs_equals_numerical_integration(differences, prior, further):
    """Expected loss of the better choice now minus after: over sigma, the effect, and the mean of the further pairs."""
    delta, sigma, weights = posterior(differences, prior)
    marginal, n = weights.sum(axis=0), len(differences)
    keep_now = max(0.0, float(weights.sum(axis=1) @ delta))
    u = np.linspace(-9, 9, 6001)
    w = stats.norm.pdf(u) * (u[1] - u[0])
    after = 0.0
    for s, weight in zip(sigma, marginal, strict=True):
        if weight < 1e-12:
            continue
        # At a known sigma: the mean and precision of delta, then of the mean of `further` pairs drawn from it.
        pairs = prior.pairs + n
        middle = n * np.mean(differences) / pairs
        drawn = middle + s * math.sqrt(1 / pairs + 1 / further) * u
        best = np.maximum(0, (pairs * middle + further * drawn) / (pairs + further))
        after += weight * float(w @ best)
    now = belief(paired(differences), prior)
    assert now.gain(further) == pytest.approx(after - keep_now, rel=2e-3)


def test_students_t_equals_scipy():
    for freedom in (0.5, 1.0, 2.0, 3.7, 11.0, 60.0, 1e4):
        for t in (-3.0, 0.0, 1e-6, 0.4, 2.0, 15.0, 300.0):
            assert student.tail(freedom, t) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9)
        for upper in (0.3, 0.025, 1e-4):
            assert student.quantile(freedom, upper) == pytest.approx(stats.t.isf(upper, freedom), rel=1e-9)
    for freedom in (2.5, 8.0):
        for z in (0.0, 1.3, 6.0):
            loss = integrate.quad(lambda x, f=freedom, z=z: (x - z) * stats.t.pdf(x, f), z, math.inf, limit=500)[0]
            assert student.linear_loss(freedom, z) == pytest.approx(loss, rel=1e-6)


# Invariances ---------------------------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=1, max_size=12)
PRIORS = st.builds(Prior, st.sampled_from([0.0, 0.5, 1.0, 4.0]), st.sampled_from([None, 0.5, 3.0]), st.just(4.0))


@given(VALUES, PRIORS, st.floats(0, 1))
@settings(deadline=None, max_examples=150)
def test_signs_order_and_unit_change_nothing_but_themselves(values, prior, price):
    now = belief(paired(values), prior)
    chosen = choose(now, price)

    shuffled = random.Random(1).sample(values, len(values))
    assert belief(paired(shuffled), prior).mean == pytest.approx(now.mean)
    assert belief(paired(shuffled), prior).sd == pytest.approx(now.sd)

    turned = choose(belief(paired([-v for v in values]), prior), price)
    assert (turned.more, turned.regret) == (chosen.more, chosen.regret)
    if now.mean:
        assert {turned.action, chosen.action} in ({"keep", "discard"}, {"more"})

    scaled = Prior(prior.pairs, None if prior.sd is None else 64 * prior.sd, prior.weight)
    bigger = choose(
        belief(paired([64 * v for v in values]), scaled), 64 * price
    )  # a power of two: but for `pow`, exact
    assert (bigger.action, bigger.more) == (chosen.action, chosen.more)
    assert bigger.regret == pytest.approx(64 * chosen.regret, rel=1e-12)


@given(VALUES, st.floats(0, 1), st.floats(1e-3, 1))
@settings(deadline=None, max_examples=100)
def test_further_pairs_never_remove_more_than_the_regret_nor_less_than_fewer_pairs_do(values, price, step):
    now = belief(paired(values), Prior(1.0, 1.0, 4.0))
    gains = [now.gain(n) for n in range(1, 30)]
    assert gains == sorted(gains)
    assert gains[-1] <= now.regret() * (1 + 1e-9)
    dearer, cheaper = choose(now, price + step), choose(now, price)
    assert dearer.more <= cheaper.more
