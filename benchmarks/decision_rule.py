"""How often the decision rule of studies errs: simulated studies in which no arm differs from any other.

    python benchmarks/decision_rule.py > benchmarks/results/decision_rule.json

A study has 3 base policies with 4 noise seeds each and 4 arms that are compared with one reference. Bases differ by
more than the noise, and each has its own spread. A study errs if the rule decides any comparison. The second half
says how often the rule finds an effect of 1.5 standard deviations of a paired difference in one of the arms.
"""

import itertools
import json

import numpy as np

from dapo_lit.study.compare.decision import holm

STUDIES, ALPHA = 1000, 0.05
BASE_OF = {seed: seed % 3 for seed in range(12)}
ARMS = ("dapo", *(f"dapo@clip.high=0.{n}" for n in (1, 3, 4, 5)))
KINDS = ("normal", "skewed", "one_sided_bistable")


def noise(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of runs: symmetric, with a long upper tail, or with a fifth of the runs far below the others."""
    match kind:
        case "normal":
            return rng.normal(0, 1, shape)
        case "skewed":
            return rng.lognormal(0, 1, shape)
        case _:
            return rng.normal(0, 0.2, shape) - 5 * (rng.random(shape) < 0.2)


def p_values(outcomes: np.ndarray) -> np.ndarray:
    """The exact sign-flip p of each arm's pairs with the first arm: outcomes [S, arms, seeds] to [S, arms - 1].

    The same as decision.sign_flip_p for equally many pairs at each base, for many studies at once.
    """
    differences = outcomes[:, 1:] - outcomes[:, :1]
    flips = np.array(list(itertools.product((1.0, -1.0), repeat=differences.shape[-1])))
    flips = flips[: len(flips) // 2]  # the other half has the same absolute sums
    limit = np.abs(differences.sum(-1)) - 1e-9 * np.abs(differences).sum(-1)
    reached = [np.mean(np.abs(flips @ study.T) >= edge, axis=0) for study, edge in zip(differences, limit, strict=True)]
    return np.array(reached)


def simulated(kind: str, effect: float = 0.0, studies: int = STUDIES) -> np.ndarray:
    """Outcomes [studies, arms, seeds]; the second arm has an effect in standard deviations of a paired difference."""
    rng = np.random.default_rng(20)
    which = np.array([BASE_OF[seed] for seed in range(12)])
    base, spread = rng.normal(0, 5, (studies, 1, 3)), rng.uniform(0.5, 2, (studies, 1, 3))
    made = noise(kind, rng, (studies, len(ARMS), 12))
    made[:, 1] += effect * 2**0.5 * noise(kind, rng, (100_000,)).std()
    return base[..., which] + spread[..., which] * made


def false_decisions() -> dict[str, float]:
    """Share of studies without any effect in which something is decided."""
    return {kind: float(np.mean([min(holm(p)) <= ALPHA for p in p_values(simulated(kind))])) for kind in KINDS}


def finds(effect: float) -> dict[str, float]:
    """Share of studies in which the arm with the effect is decided."""
    return {kind: float(np.mean([holm(p)[0] <= ALPHA for p in p_values(simulated(kind, effect))])) for kind in KINDS}


if __name__ == "__main__":
    setup = {"studies": STUDIES, "bases": 3, "noise_seeds": 4, "comparisons": len(ARMS) - 1, "alpha": ALPHA}
    print(json.dumps({**setup, "false_decisions": false_decisions(), "finds_1.5_sd": finds(1.5)}, indent=1))
