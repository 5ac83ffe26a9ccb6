"""Keep a change, discard it, or run more pairs: what stopping now may cost against what further pairs cost.

A test keeps an error; it is for somebody who claims. Somebody who tunes goes on with one of two settings in any case,
and loses the difference if the other one is better. The expected loss is the *regret* of stopping now. More pairs are
worth the regret that they are expected to remove (the value of sample information; Raiffa and Schlaifer 1961), and a
run has a price in the same unit.

The model: differences of pairs are normal, d_i ~ N(delta, sigma^2). The prior is conjugate, so that all of it is in
closed form: sigma^2 is scaled inverse chi-squared with `weight` degrees of freedom around `sd`^2, and delta | sigma^2
is N(0, sigma^2 / pairs): a prior mean of 0 that counts as much as `pairs` pairs. delta then has a Student t
distribution. Everything scales with the unit of the values and changes sides with their sign. Nothing is read or
written here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.compare.student import linear_loss, quantile, tail

MOST = 24
"""The most further pairs that are proposed at once; studies stop at 24 as well."""


@dataclass(frozen=True)
class Evidence:
    """What the runs of a change say of its effect: enough of their differences for every formula here."""

    pairs: float
    """n; of unpaired runs, the number of pairs of equal precision, 2 n1 n2 / (n1 + n2)."""
    mean: float
    """Mean difference, with the change minus without it."""
    squares: float
    """Sum of squared deviations of differences from their mean; of unpaired runs, twice that of the runs of each
    side."""
    freedom: float
    """Degrees of freedom of `squares`."""

    @property
    def sd(self) -> float | None:
        """Standard deviation of the difference of a pair; None where nothing can be said of it."""
        return math.sqrt(self.squares / self.freedom) if self.freedom > 0 else None


def paired(differences: Sequence[float]) -> Evidence:
    """Evidence of the differences of pairs that share their noise.

    >>> paired([1.0, 3.0])
    Evidence(pairs=2, mean=2.0, squares=2.0, freedom=1)

    Raises ValueError: there is none.
    """
    if not differences:
        raise ValueError("there is no pair")
    mean = math.fsum(differences) / len(differences)
    return Evidence(len(differences), mean, math.fsum((d - mean) ** 2 for d in differences), len(differences) - 1)


def unpaired(treated: Sequence[float], control: Sequence[float]) -> Evidence:
    """Evidence of runs that share nothing. Both sides are taken to vary alike.

    >>> unpaired([1.0, 3.0], [0.0, 0.0])  # the two runs of a side count as two pairs
    Evidence(pairs=2.0, mean=2.0, squares=4.0, freedom=2)

    Raises ValueError: a side has no run.
    """
    if not treated or not control:
        raise ValueError("a side has no run")
    sides = [paired(treated), paired(control)]
    n1, n2 = len(treated), len(control)
    # The difference of two runs has twice the variance of one.
    squares = 2 * math.fsum(side.squares for side in sides)
    return Evidence(2 * n1 * n2 / (n1 + n2), sides[0].mean - sides[1].mean, squares, n1 + n2 - 2)


@dataclass(frozen=True)
class Prior:
    """What is known before the first pair. Without `sd`, nothing is taken to be known of the noise."""

    pairs: float = 1.0
    """1 / (spread of effects in standard deviations of a pair)^2; 0: every effect is as likely as any other."""
    sd: float | None = None
    """Standard deviation of a pair elsewhere, as in the ledger's other changes."""
    weight: float = 4.0
    """Degrees of freedom that `sd` counts as, if it is given."""


SHIPPED = Prior()
"""In factorial_joint and factorial_half_programs, which this was chosen on, effects of one or two switches spread by
0.8 to 1.6 standard deviations of a pair, and these deviations vary between changes as those of 3 to 12 degrees of
freedom do."""
SHARES = Prior(sd=0.028, weight=2.3)
"""Of values that are shares, such as held-out accuracy: how a pair varied over eleven tasks of committed calibrations.
Wide: half of its standard deviations lie between 2.4 and 4.9 points. `python benchmarks/decide_calibration.py` fits it,
and tests it on tasks that it was not made from (docs/decide.md)."""
FLAT = Prior(pairs=0.0)


@dataclass(frozen=True)
class Belief:
    """The posterior of an effect: location-scale t."""

    mean: float
    pairs: float
    """Pairs of the prior and of the evidence together."""
    sd: float
    """Estimate of the standard deviation of a pair."""
    freedom: float

    @property
    def scale(self) -> float:
        return self.sd / math.sqrt(self.pairs)

    @property
    def wrong_sign(self) -> float:
        """The probability that the effect's sign is not that of `mean`; 0.5 where that is 0."""
        if self.mean == 0:
            return 0.5
        if self.freedom <= 0:  # one pair without a prior
            return 0.5
        return tail(self.freedom, abs(self.mean) / self.scale) if self.scale else 0.0

    def regret(self) -> float:
        """Expected loss of going on with what looks better now. Infinite where too little is known to say."""
        return _loss(abs(self.mean), self.scale, self.freedom)

    def gain(self, further: float) -> float:
        """The regret that so many further pairs are expected to remove.

        The mean after them is a t around the mean now (the preposterior distribution), and only where it changes sign
        does the choice change.
        """
        spread = self.sd * math.sqrt(further / (self.pairs * (self.pairs + further)))
        return _loss(abs(self.mean), spread, self.freedom)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The central credible interval of the effect."""
        if self.freedom <= 0:
            return -math.inf, math.inf
        half = quantile(self.freedom, (1 - level) / 2) * self.scale
        return self.mean - half, self.mean + half


def _loss(distance: float, scale: float, freedom: float) -> float:
    """E[(scale T - distance)^+] of a Student t."""
    if freedom <= 1:  # also where the only difference is 0: one pair shows no noise
        return math.inf
    return scale * linear_loss(freedom, distance / scale) if scale else 0.0


def belief(evidence: Evidence, prior: Prior = SHIPPED) -> Belief:
    """The posterior of an effect.

    With a guess of sd: nu_n = weight + freedom + 1 and
    nu_n s^2 = weight sd^2 + squares + pairs n / (pairs + n) mean^2, where n is the evidence's number of pairs and
    `pairs` the prior's. A flat prior (`pairs` = 0) leaves out the +1 and the last term, as Student's interval does.
    """
    known = prior.weight if prior.sd is not None else 0.0
    n, together = evidence.pairs, prior.pairs + evidence.pairs
    freedom = known + evidence.freedom + (1 if prior.pairs else 0)
    squares = known * (prior.sd or 0.0) ** 2 + evidence.squares + prior.pairs * n / together * evidence.mean**2
    sd = math.sqrt(squares / freedom) if freedom > 0 else math.inf
    return Belief(n * evidence.mean / together, together, sd, freedom)


@dataclass(frozen=True)
class Choice:
    """What to do with a change, and what that rests on."""

    action: str
    """keep, discard or more."""
    more: int
    """Further pairs; 0 unless the action is `more`."""
    regret: float
    """Expected regret of stopping now."""
    regret_after: float
    """And after the further pairs; the same where there are none."""


def choose(now: Belief, price: float, most: int = MOST) -> Choice:
    """Keep or discard by the sign of the mean, unless some number of further pairs removes more regret than it costs.

    price: of a pair, in the unit of the values. Where the regret is infinite, the fewest pairs that make it finite are
    asked for.
    """
    regret = now.regret()
    if math.isinf(regret):
        # Each pair is a degree of freedom, and more than one are needed.
        needed = max(1, math.floor(1 - now.freedom) + 1)
        return Choice("more", needed, regret, math.inf) if most >= needed else Choice(_sign(now), 0, regret, regret)
    net = {further: now.gain(further) - further * price for further in range(1, most + 1)}
    best = max(net, key=lambda further: net[further], default=0)
    if not best or net[best] <= 0:
        return Choice(_sign(now), 0, regret, regret)
    return Choice("more", best, regret, regret - now.gain(best))


def _sign(now: Belief) -> str:
    """A tie is discarded: what changes nothing is left out."""
    return "keep" if now.mean > 0 else "discard"


def pooled(evidence: Sequence[Evidence], apart_from: int, noise: Prior = SHIPPED) -> Prior:
    """A prior with the standard deviation of a pair over all changes but one, and what was known of it before.

    noise: SHARES, or SHIPPED where nothing was known; returned where the other changes show no noise.
    """
    others = [each for place, each in enumerate(evidence) if place != apart_from]
    freedom = math.fsum(each.freedom for each in others)
    squares = math.fsum(each.squares for each in others)
    if freedom <= 0 or squares <= 0:
        return noise
    if noise.sd is not None:
        freedom, squares = freedom + noise.weight, squares + noise.weight * noise.sd**2
    return Prior(noise.pairs, math.sqrt(squares / freedom), min(SHIPPED.weight, freedom))
