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

`statistics` compares what else could decide, one comparison at 5 % over 12 bases, without and with noise as large as
the effects: how often it rejects the truth, which is one minus the coverage of its interval. Mean: the rule, Student's
t, Johnson's (1978) and Hall's (1992) corrections of t for skew against Student's quantiles and over the sign flips, and
a bootstrap-t. Median: the sign test, and Wilcoxon's. `looks` has the share of intervals with the truth in them where a
study looks after 8, 12, ... bases and stops once it is decided, at an effect of 0.6 standard deviations: of the mean by
the rule, of the median by the signs. Both are made alone by

    python benchmarks/decision_rule.py --into benchmarks/results/decision_rule.json
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from ablations.compare.sequential import rejections
from ablations.compare.statistics import flips

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
    """Exact two-sided p of the sign test over the last axis. A zero counts for whichever sign is rarer."""
    n, most = values.shape[-1], np.maximum((values < 0).sum(axis=-1), (values > 0).sum(axis=-1))
    return np.minimum(1, 2 * stats.binom.cdf(n - most, n, 0.5))


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


UNEVEN: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(0, 1, shape),
    "t with 2 degrees of freedom": lambda rng, shape: rng.standard_t(2, shape),
    "ties": lambda rng, shape: rng.integers(-1, 2, shape).astype(float),
    "exponential": lambda rng, shape: rng.exponential(1, shape) - 1,
    "lognormal": lambda rng, shape: rng.lognormal(0, 1, shape) - np.exp(0.5),
    "one in five": lambda rng, shape: np.where(rng.random(shape) < 1 / 5, 2.0, -0.5),
    "one in six": lambda rng, shape: np.where(rng.random(shape) < 1 / 6, 5**0.5, -(0.2**0.5)),
}
"""Effects over base policies, of mean 0."""
Statistic = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]
"""Of mean, variance, third central moment and number of values."""


def the_mean(mean: np.ndarray, variance: np.ndarray, third: np.ndarray, n: int) -> np.ndarray:
    return mean


def student(mean: np.ndarray, variance: np.ndarray, third: np.ndarray, n: int) -> np.ndarray:
    return mean / np.sqrt(variance / n)


def johnson(mean: np.ndarray, variance: np.ndarray, third: np.ndarray, n: int) -> np.ndarray:
    """(mean + k / (6 s^2 n) + k mean^2 / (3 s^4)) / (s / sqrt(n)), with the third moment k."""
    corrected = mean + third / (6 * variance * n) + third * mean**2 / (3 * variance**2)
    return corrected / np.sqrt(variance / n)


def hall(mean: np.ndarray, variance: np.ndarray, third: np.ndarray, n: int) -> np.ndarray:
    """t + g (t^2 / 3 + 1/6) / sqrt(n) + g^2 t^3 / (27 n), with the skewness g."""
    t, skewness = mean / np.sqrt(variance / n), third / variance**1.5
    return t + skewness * (t**2 / 3 + 1 / 6) / n**0.5 + skewness**2 * t**3 / (27 * n)


def of_sums(first: np.ndarray, second: np.ndarray, third: np.ndarray, n: int, statistic: Statistic) -> np.ndarray:
    """A statistic from the sums of values, of their squares and of their cubes."""
    mean = first / n
    variance = np.maximum(second - n * mean**2, 1e-12 * second) / (n - 1)
    central = (third - 3 * mean * second + 2 * n * mean**3) * n / ((n - 1) * (n - 2))
    return statistic(mean, variance, central, n)


def of_values(values: np.ndarray, statistic: Statistic) -> np.ndarray:
    return of_sums(values.sum(-1), (values**2).sum(-1), (values**3).sum(-1), values.shape[-1], statistic)


def over_flips(values: np.ndarray, statistic: Statistic) -> np.ndarray:
    """Rejected at 5 % by the place of |statistic| among those of all sign flips."""
    n, signs = values.shape[1], flips(values.shape[1]).T
    found = []
    for part in np.array_split(values, max(1, len(values) // 250)):
        squares = (part**2).sum(axis=1)[:, None]
        sizes = np.abs(of_sums(part @ signs, squares, part**3 @ signs, n, statistic))
        found.append((sizes >= sizes[:, :1] * (1 - 1e-9)).mean(axis=1))
    return np.concatenate(found) <= ALPHA


def by_quantile(values: np.ndarray, statistic: Statistic) -> np.ndarray:
    return np.abs(of_values(values, statistic)) > stats.t.ppf(1 - ALPHA / 2, values.shape[1] - 1)


def bootstrap_t(values: np.ndarray, resamples: int = 499) -> np.ndarray:
    """Rejected by the quantiles of t over resamples, with equal tails. Resamples without spread count as 0."""
    rng, n = np.random.default_rng(23), values.shape[1]
    found = []
    for row in values:
        t = of_values((row - row.mean())[rng.integers(0, n, (resamples, n))], student)
        own = float(of_values(row, student))
        above, below = np.sum(np.nan_to_num(t) >= own), np.sum(np.nan_to_num(t) <= own)
        found.append(2 * (1 + min(above, below)) / (resamples + 1) <= ALPHA)
    return np.array(found)


def wilcoxon(values: np.ndarray) -> np.ndarray:
    ranks = stats.rankdata(np.abs(values), axis=1)
    sizes = np.abs((ranks * np.sign(values)) @ flips(values.shape[1]).T)
    return np.mean(sizes >= sizes[:, :1] - 1e-9, axis=1) <= ALPHA


def statistics(kind: str, noise: float, studies: int = 4000, bases: int = 12) -> dict[str, float]:
    """How often each statistic rejects the true mean, or the true median."""
    rng = np.random.default_rng(22)
    values = UNEVEN[kind](rng, (studies, bases)) + noise * rng.normal(size=(studies, bases))
    many = UNEVEN[kind](rng, (2, 200_000)) + noise * rng.normal(size=(2, 200_000))
    median, middle = float(np.median(many)), float(np.median(many.mean(axis=0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        rejected = {
            "sign flips": over_flips(values, the_mean),
            "Student's t": by_quantile(values, student),
            "Johnson's t": by_quantile(values, johnson),
            "Hall's t": by_quantile(values, hall),
            "Johnson's t over sign flips": over_flips(values, johnson),
            "bootstrap-t": bootstrap_t(values[:500]),
            "signs": sign_p(np.where(np.abs(values - median) < 1e-9, 0.0, values - median)) <= ALPHA,
            "Wilcoxon": wilcoxon(np.where(np.abs(values - middle) < 1e-9, 0.0, values - middle)),
        }
    return {name: round(float(found.mean()), 4) for name, found in rejected.items()}


def at_stop(kind: str, effect: float = 0.6, studies: int = 2000) -> dict[str, float]:
    """The share of studies whose interval at the look that decides them, or at the last, has the truth in it."""
    rng = np.random.default_rng(24)
    drawn, many = UNEVEN[kind](rng, (studies, MOST)), UNEVEN[kind](rng, (400_000,))
    values = drawn / many.std() + effect
    median = float(np.median(many)) / float(many.std()) + effect
    found = {}
    for name, compared, truth in (
        ("mean", values, values - effect),
        ("median", np.sign(values), np.sign(np.where(np.abs(values - median) < 1e-9, 0.0, values - median))),
    ):
        stop, missed = stops(compared, LOOKS, ALPHA), stops(truth, LOOKS, ALPHA)
        ended = np.where(stop > 0, stop, MOST)
        found[name] = round(1 - float(np.mean((missed > 0) & (missed <= ended))), 4)
    return found


def uneven_statistics() -> dict[str, object]:
    return {
        "statistics": {f"{kind}, noise {noise:g}": statistics(kind, noise) for kind in UNEVEN for noise in (0.0, 1.0)},
        "looks_cover": {kind: at_stop(kind) for kind in UNEVEN},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--into", type=Path, help="makes `statistics` and `looks_cover` of this JSON, and keeps the rest"
    )
    options = parser.parse_args()
    if options.into:
        found = json.loads(options.into.read_text(encoding="utf-8")) | uneven_statistics()
        options.into.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    setup = {"studies": STUDIES, "alpha": ALPHA, "comparisons": ARMS, "looks": LOOKS}
    wrong = {
        f"{kind}, tau {tau:g}": errors(kind, tau) for kind in KINDS for tau in TAUS if kind == "normal" or tau == 1
    }
    uneven = {f"{kind}, tau {tau:g}": skewed(kind, tau) for kind in SKEWED for tau in SKEWED_TAUS}
    power = {str(e): finds(e) for e in EFFECTS}
    found = {**setup, "false_decisions": wrong, "finds": power, "skewed_effects": uneven, **uneven_statistics()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
