"""How often the rule of studies errs and what it finds, in simulated studies, fixed and sequential.

    python benchmarks/decision_rule.py > benchmarks/results/decision_rule.json

A study compares four arms with one reference. The difference of a pair is the arm's effect, the base policy's own
deviation from it (standard deviation tau) and the noise of two runs (together sigma = 1). `false_decisions` is the
share of 20,000 studies without any mean effect in which something is decided by each look, with its upper 95 % bound;
`last of four` the same for the one comparison that is left when three are decided, at the whole alpha. Effects are in
standard deviations of a pair over bases. Rules: 12 bases; four seeds on each of three bases, runs taken as units, as
studies had it before; six pairs and then six more, tested again each time; alpha spending in proportion to the bases;
e-values for symmetric differences, a mixture of exp(z) / cosh(z) (de la Pena 1999; Ramdas et al. 2020).

The rule assumes that a base policy's deviation is symmetric. `skewed_effects` (8,000 studies each) draws deviations of
mean 0 that are not: exponential ones, and a technique that makes one base policy in five take off and costs the others
a little. There the mean is 0 and most base policies lose, so a decision is an error about the mean. `with_most` is the
share of decisions whose sign is that of most base policies (of the median deviation), `against_most` the share of all
studies with one of the other sign. `sign test` is the exact test of just that, at 12 bases.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from ablations.compare.sequential import rejections

STUDIES, ALPHA, ARMS, MOST = 20_000, 0.05, 4, 24
LOOKS = (8, 12, 16, 20, 24)
TAUS = (0.0, 0.5, 1.0, 1.5)
KINDS = ("normal", "skewed", "one_sided_bistable")
EFFECTS = (0.9, 1.5, 2.5)
SKEWED = ("normal", "exponential", "one in five")
SKEWED_TAUS = (1.0, 2.0)


def noise(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of runs: symmetric, with a long upper tail, or with a fifth of the runs far below the others."""
    match kind:
        case "normal":
            return rng.normal(0, 1, shape)
        case "skewed":
            return rng.lognormal(0, 1, shape)
        case _:
            return rng.normal(0, 0.2, shape) - 5 * (rng.random(shape) < 0.2)


def differences(kind: str, tau: float, effect: float, studies: int, seeds: int = 1, bases: int = MOST) -> np.ndarray:
    """Paired differences [studies, arms, bases * seeds] with the reference; seeds of a base follow one another."""
    rng = np.random.default_rng(20)
    sigma = 2**0.5 * noise(kind, rng, (100_000,)).std()
    runs = noise(kind, rng, (studies, ARMS + 1, bases * seeds))
    own = rng.normal(0, tau, (studies, ARMS, bases)) + effect * (1 + tau**2) ** 0.5
    return (runs[:, 1:] - runs[:, :1]) / sigma + np.repeat(own, seeds, axis=2)


def deviations(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Deviations of base policies with mean 0 and standard deviation 1; the median of the last two is negative."""
    match kind:
        case "normal":
            return rng.normal(0, 1, shape)
        case "exponential":
            return rng.exponential(1, shape) - 1
        case _:
            return np.where(rng.random(shape) < 0.2, 2.0, -0.5)


def skewed(kind: str, tau: float, studies: int = 8000) -> dict[str, dict[str, float]]:
    """How often each rule decides anything where the mean effect is 0, and on which side."""
    rng = np.random.default_rng(21)
    runs = rng.normal(0, 0.5**0.5, (studies, ARMS + 1, MOST))
    values = runs[:, 1:] - runs[:, :1] + tau * deviations(kind, rng, (studies, ARMS, MOST))
    found = {}
    for rule, looks in (("12 bases", (12,)), ("spending", LOOKS)):
        at = stops(values, looks, ALPHA / ARMS)
        sums = np.take_along_axis(values.cumsum(axis=-1), np.maximum(at, 1)[..., None] - 1, axis=-1)[..., 0]
        found[rule] = sides(at > 0, sums)
    found["sign test"] = sides(sign_p(values[..., :12]) <= ALPHA / ARMS, 6 - (values[..., :12] < 0).sum(axis=-1))
    return found


def sign_p(values: np.ndarray) -> np.ndarray:
    """Exact two-sided p of the sign test over the last axis."""
    n, losses = values.shape[-1], (values < 0).sum(axis=-1)
    return np.minimum(1, 2 * stats.binom.cdf(np.minimum(losses, n - losses), n, 0.5))


def sides(decided: np.ndarray, direction: np.ndarray) -> dict[str, float]:
    """Of comparisons [studies, arms]: studies that decide one, decisions that follow most bases (down), studies with
    one that does not."""
    wrong = decided & (direction > 0)
    return {
        "decide": round(float(decided.any(axis=1).mean()), 4),
        "with_most": round(1 - float(wrong.sum() / max(1, decided.sum())), 4),
        "against_most": round(float(wrong.any(axis=1).mean()), 4),
    }


def stops(values: np.ndarray, looks: Sequence[int], level: float) -> np.ndarray:
    """The look at which each comparison [studies, arms] is decided, 0 for never."""
    flat = values.reshape(-1, values.shape[-1])
    parts = [rejections(part, looks, level) for part in np.array_split(flat, max(1, len(flat) // 4000))]
    return np.concatenate(parts).reshape(values.shape[:-1])


def again(values: np.ndarray, level: float) -> np.ndarray:
    """Six pairs and then six more, with the whole level at each look."""
    each = [stops(values[..., :look], (look,), level) for look in (6, 12, 18, 24)]
    return np.where(np.any(each, axis=0), np.min(np.where(np.array(each) > 0, each, 99), axis=0), 0)


def e_values(values: np.ndarray, level: float) -> np.ndarray:
    """The first number of pairs at which the e-value reaches 1 / level; it may be looked at after every pair."""
    scale = np.sqrt(np.cumsum(values**2, axis=-1) / np.arange(1, values.shape[-1] + 1))
    z = np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])[:, None, None, None] * values / scale
    grown = np.exp(np.cumsum(z - np.logaddexp(z, -z) + np.log(2), axis=-1)).mean(axis=0)
    over = grown >= 1 / level
    return np.where(over.any(axis=-1), over.argmax(axis=-1) + 1, 0)


def by_look(found: np.ndarray, looks: Sequence[int]) -> dict[str, list[float]]:
    """Look -> share of studies decided by then, and its upper 95 % bound (Clopper and Pearson)."""
    counts = {look: int(np.sum((found > 0) & (found <= look))) for look in looks}
    n = len(found)
    return {str(k): [round(c / n, 4), round(float(stats.beta.ppf(0.95, c + 1, n - c)), 4)] for k, c in counts.items()}


def earliest(found: np.ndarray) -> np.ndarray:
    """The first look at which any arm of a study [studies, arms] is decided, 0 for never."""
    first = np.where(found > 0, found, 99).min(axis=1)
    return np.where(first < 99, first, 0)


def errors(kind: str, tau: float, studies: int = STUDIES) -> dict[str, Mapping[str, object]]:
    """False decisions by each look, of every rule."""
    values, level = differences(kind, tau, 0.0, studies), ALPHA / ARMS
    nested = differences(kind, tau, 0.0, studies, seeds=4, bases=3)
    found: dict[str, Mapping[str, object]] = {
        "12 bases": by_look(earliest(stops(values[..., :12], (12,), level)), (12,)),
        "3 bases x 4 seeds, runs as units": by_look(earliest(stops(nested, (12,), level)), (12,)),
        "6 and 6 more, one comparison": by_look(again(values[:, 0], ALPHA), (6, 12, 18, 24)),
    }
    found["spending"] = by_look(earliest(stops(values, LOOKS, level)), LOOKS)
    found["spending, last of four"] = by_look(stops(values[:, 0], LOOKS, ALPHA), LOOKS)
    found["e-values"] = by_look(earliest(e_values(values, level)), LOOKS)
    return found


def finds(effect: float, tau: float = 1.0, studies: int = 4000) -> dict[str, list[float]]:
    """Power and mean number of pairs, of one comparison at the whole alpha and of the first of four: normal noise."""
    values = differences("normal", tau, effect, studies)[:, 0]
    found = {}
    for label, level in (("one", ALPHA), ("of four", ALPHA / ARMS)):
        rules = {"12 bases": stops(values[:, :12], (12,), level), "24 bases": stops(values, (24,), level)}
        rules["spending"] = stops(values, LOOKS, level)
        rules["12 bases by their signs"] = sign_p(values[:, :12]) <= level
        rules["e-values"] = e_values(values[:, None], level)[:, 0]
        for name, stop in rules.items():
            fixed = name[0].isdigit()
            spent = np.full(len(stop), int(name.split()[0])) if fixed else np.where(stop > 0, stop, MOST)
            found[f"{name}, {label}"] = [round(float(np.mean(stop > 0)), 3), round(float(np.mean(spent)), 1)]
    return found


if __name__ == "__main__":
    setup = {"studies": STUDIES, "alpha": ALPHA, "comparisons": ARMS, "looks": LOOKS}
    wrong = {
        f"{kind}, tau {tau:g}": errors(kind, tau) for kind in KINDS for tau in TAUS if kind == "normal" or tau == 1
    }
    uneven = {f"{kind}, tau {tau:g}": skewed(kind, tau) for kind in SKEWED for tau in SKEWED_TAUS}
    power = {str(e): finds(e) for e in EFFECTS}
    print(json.dumps({**setup, "false_decisions": wrong, "finds": power, "skewed_effects": uneven}, indent=1))
