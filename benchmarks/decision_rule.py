"""How often the rule of studies errs and what it finds, in simulated studies, fixed and sequential.

    python benchmarks/decision_rule.py > benchmarks/results/decision_rule.json

A study compares four arms with one reference. The difference of a pair is the arm's effect, the base policy's own
deviation from it (standard deviation tau) and the noise of two runs (together sigma = 1). `false_decisions` is the
share of 20,000 studies without any effect in which something is decided by each look, with its upper 95 % bound;
`last_of_four` the same for the one comparison that is left when three are decided, at the whole alpha. Effects are in
standard deviations of a pair over bases. Rules: 12 bases; four seeds on each of three bases, runs taken as units, as
studies had it before; six pairs and then six more, tested again each time; alpha spending with 1 and 2 as power;
e-values for symmetric differences, a mixture of exp(z) / cosh(z) (de la Pena 1999; Ramdas et al. 2020).
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from dapo_lit.study.compare.sequential import rejections

STUDIES, ALPHA, ARMS, MOST = 20_000, 0.05, 4, 24
LOOKS = (8, 12, 16, 20, 24)
TAUS = (0.0, 0.5, 1.0, 1.5)
KINDS = ("normal", "skewed", "one_sided_bistable")
EFFECTS = (0.9, 1.5, 2.5)


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


def stops(values: np.ndarray, looks: Sequence[int], level: float, power: float = 1.0) -> np.ndarray:
    """The look at which each comparison [studies, arms] is decided, 0 for never."""
    flat = values.reshape(-1, values.shape[-1])
    parts = [rejections(part, looks, level, power) for part in np.array_split(flat, max(1, len(flat) // 4000))]
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
    for power in (1.0, 2.0):
        found[f"spending {power:g}"] = by_look(earliest(stops(values, LOOKS, level, power)), LOOKS)
    found["spending 1, last of four"] = by_look(stops(values[:, 0], LOOKS, ALPHA), LOOKS)
    found["e-values"] = by_look(earliest(e_values(values, level)), LOOKS)
    return found


def finds(effect: float, tau: float = 1.0, studies: int = 4000) -> dict[str, list[float]]:
    """Power and mean number of pairs, of one comparison at the whole alpha and of the first of four: normal noise."""
    values = differences("normal", tau, effect, studies)[:, 0]
    found = {}
    for label, level in (("one", ALPHA), ("of four", ALPHA / ARMS)):
        rules = {"12 bases": stops(values[:, :12], (12,), level), "24 bases": stops(values, (24,), level)}
        rules |= {f"spending {p:g}": stops(values, LOOKS, level, p) for p in (1.0, 2.0)}
        rules["e-values"] = e_values(values[:, None], level)[:, 0]
        for name, stop in rules.items():
            most = int(name.split()[0]) if name.endswith("bases") else MOST
            spent = np.full(len(stop), most) if name.endswith("bases") else np.where(stop > 0, stop, most)
            found[f"{name}, {label}"] = [round(float(np.mean(stop > 0)), 3), round(float(np.mean(spent)), 1)]
    return found


if __name__ == "__main__":
    setup = {"studies": STUDIES, "alpha": ALPHA, "comparisons": ARMS, "looks": LOOKS}
    wrong = {
        f"{kind}, tau {tau:g}": errors(kind, tau) for kind in KINDS for tau in TAUS if kind == "normal" or tau == 1
    }
    print(json.dumps({**setup, "false_decisions": wrong, "finds": {str(e): finds(e) for e in EFFECTS}}, indent=1))
