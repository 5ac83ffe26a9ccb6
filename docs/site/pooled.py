"""Effects around DAPO over sets of base policies: what a technique is worth when it is taken out of DAPO (filtering:
put in), and how soft punishment and dynamic sampling depend on each other there.

One study's base policies are one set. Sets differ by more than their own intervals say, so pages state the mean over
sets, and a set's own number only in the table that has all of them. `around.py` refuses the others.

The mean is that of one-way random effects. A base policy's variance is pooled over the sets, since the variance of
three or four values is no weight; that between sets is DerSimonian's and Laird's (1986). The interval is Hartung's and
Knapp's (2001), Student's t over sets with the spread of the sets as they are, which keeps its level with few sets where
the normal one does not (IntHout et al. 2014); it is never narrower than without a spread (Roever et al. 2015). With two
sets it is wide: two cannot say how sets differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from around import AROUND, DYNAMIC, FILTERING, SOFT, normal
from cells import cells, on_accuracy, points, ratio
from scipy import stats

from ablations.compare.contrasts import Contrast, Effect
from ablations.compare.statistics import Estimate
from ablations.techniques import DAPO, REGISTER


@dataclass(frozen=True)
class Set:
    """Base policies on which DAPO's neighbours were trained under the same conditions."""

    folder: str
    note: str = ""
    """How it differs from the regime at equal steps."""
    at: Mapping[str, object] = field(default_factory=dict)
    """Settings that all its arms share; None: any value, as where each arm has a rate of its own."""
    equal_tokens: bool = False


UNBOUNDED = {"algorithm.clip.high": 5}
RATE = "algorithm.optimizer.lr"
SETS: dict[str, tuple[Set, ...]] = {
    "sums": (
        Set("factorial_joint"),
        Set("four_techniques_joint"),
        Set("table1_joint"),
        Set("calibrate_joint/three_bases", "no upper clip bound", UNBOUNDED),
        Set("calibrate_joint", "no upper clip bound", UNBOUNDED),
        Set("tuned_joint/pilot", "", {RATE: 2e-4}),
        Set("tuned_joint/compared", "each arm at its best rate", {RATE: None}),
        Set("penalised_answers/joint"),
        Set("whose_penalty/joint"),
        Set("three_means/joint"),
        Set("clip_by_reuse"),
        Set("cheaper_sampling/joint", "160,000 tokens", equal_tokens=True),
        Set("mask_or_refill/joint", "320,000 tokens", equal_tokens=True),
        Set("price_of_sampling/joint", "640,000 tokens", equal_tokens=True),
    ),
    "sums, groups of four": (
        Set("dynamic_sampling_sparse"),
        Set("calibrate_sparse/three_bases", "no upper clip bound", UNBOUNDED),
        Set("calibrate_sparse", "no upper clip bound", UNBOUNDED),
        Set("fork_validation/sparse_runs"),
        Set("cheaper_sampling/sparse", "80,000 tokens", equal_tokens=True),
    ),
    "programs": (
        Set("across_tasks/programs"),
        Set("calibrate_programs/three_bases", "no upper clip bound", UNBOUNDED),
        Set("calibrate_programs", "no upper clip bound", UNBOUNDED),
        Set("penalised_answers/programs", "limit of 20 tokens"),
        Set("three_means/programs"),
        Set("cheaper_sampling/programs", "160,000 tokens", equal_tokens=True),
        Set("mask_or_refill/programs", "320,000 tokens", equal_tokens=True),
        Set("price_of_sampling/programs", "640,000 tokens", equal_tokens=True),
    ),
    "parity": (
        Set("across_tasks/parity"),
        Set("calibrate_parity/three_bases", "no upper clip bound", UNBOUNDED),
        Set("calibrate_parity", "no upper clip bound", UNBOUNDED),
        Set("price_of_sampling/parity", "640,000 tokens", equal_tokens=True),
    ),
    "calculator": (
        Set("calibrate_calculator", "no upper clip bound", UNBOUNDED),
        Set("whose_penalty/calculator"),
        Set("price_of_sampling/calculator", "640,000 tokens", equal_tokens=True),
    ),
    "sums, batches reused": (Set("clip_dose_discovery"),),
    "sums, a limit that cuts": (Set("fork_validation/tight_limit_runs"),),
    "sums, rambling": (Set("fork_validation/rambling_runs"),),
    "sums, rare long answers": (Set("emergence_token_level_loss_chain_sum_rare"),),
    "sums, in a page": (Set("calibrate_browser"),),
    "sums, a second try": (Set("calibrate_second_try", "no upper clip bound", UNBOUNDED),),
    "SmolLM2-135M": (
        Set("length_penalty"),
        Set("sampling_smollm2", "adapters, 16,000 tokens", equal_tokens=True),
    ),
}
"""Every packed set, by task. A task with one set has no mean, and pages state no size of it."""


@dataclass(frozen=True)
class Pooled:
    """A mean over sets of base policies."""

    mean: float
    low: float
    high: float
    between: float
    """Standard deviation between sets."""
    sets: int
    bases: int

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.mean, self.low, self.high, self.bases, None)


def random_effects(sets: Sequence[Sequence[float]], level: float = 0.95) -> Pooled:
    """The mean over sets of base policies, each with its bases' differences, with an interval that says what a further
    set would be about.

    >>> found = random_effects([[0, 2], [4, 6]])
    >>> round(found.mean, 6), round(found.between**2, 6)
    (3.0, 7.0)

    Raises ValueError: there are fewer than two sets, or none has two different values.
    """
    counts = np.array([len(values) for values in sets], dtype=float)
    means = np.array([np.mean(values) for values in sets])
    squares = sum(float(np.sum((np.asarray(values) - np.mean(values)) ** 2)) for values in sets)
    if len(sets) < 2 or not squares:
        raise ValueError(f"a mean over sets needs two of them and a spread within, got {len(sets)}")
    within = squares / (counts.sum() - len(sets)) / counts  # the variance of each set's mean
    fixed = 1 / within
    excess = np.sum(fixed * (means - np.average(means, weights=fixed)) ** 2) - (len(sets) - 1)
    between = max(0.0, excess / (fixed.sum() - np.sum(fixed**2) / fixed.sum()))
    weights = 1 / (within + between)
    mean = float(np.average(means, weights=weights))
    spread = max(1.0, np.sum(weights * (means - mean) ** 2) / (len(sets) - 1))
    half = float(stats.t.ppf(0.5 + level / 2, len(sets) - 1) * np.sqrt(spread / weights.sum()))
    return Pooled(mean, mean - half, mean + half, float(between**0.5), len(sets), int(counts.sum()))


EFFECTS = {**AROUND, "dapo_against_grpo": {DAPO: 1.0, frozenset[str](): -1.0}}
"""Effect -> weights of the techniques that are on."""


@cache
def of_set(task: str, place: int, effect: str) -> Effect | None:
    """An effect around DAPO in one set of a task; None where its cells lack an arm of it."""
    one = SETS[task][place]
    arms: dict[frozenset[str], str] = {}
    for arm in cells(one.folder).arms:
        on, settings = normal(arm)
        wanted = {key: settings.get(key) if value is None else value for key, value in one.at.items()}
        if settings == wanted:
            arms.setdefault(on, arm)
    if not set(EFFECTS[effect]) <= set(arms):
        return None
    weights = {arms[on]: weight for on, weight in EFFECTS[effect].items()}
    return on_accuracy(one.folder, Contrast("", effect, effect if effect in REGISTER else None, weights), one_set=True)


def enters(task: str, place: int, effect: str) -> bool:
    """True for a set of which a mean is made. Dynamic sampling takes up to four times the tokens, so that its effect at
    equal tokens is another one than at equal steps, and a curve (effects.py)."""
    return not (effect.startswith("dynamic_sampling") and SETS[task][place].equal_tokens)


def _entering(task: str, effect: str) -> list[Effect]:
    places = [place for place in range(len(SETS[task])) if enters(task, place, effect)]
    return [one for place in places if (one := of_set(task, place, effect))]


def several(task: str, effect: str) -> bool:
    """True if a mean can be made."""
    return len(_entering(task, effect)) > 1


@cache
def over_sets(task: str, effect: str) -> Pooled:
    """The mean of an effect around DAPO over the sets of a task.

    Raises SystemExit: fewer than two sets have it.
    """
    found = _entering(task, effect)
    if len(found) < 2:
        raise SystemExit(
            f"{effect} around DAPO on {task}: {len(found)} set of base policies has it, which makes no mean"
        )
    return random_effects([list(one.by_base.values()) for one in found])


def tokens(task: str, effect: str) -> str:
    """Tokens with over without, least and most of the sets."""
    places = [place for place in range(len(SETS[task])) if enters(task, place, effect)]
    each = [ratio(SETS[task][place].folder, one.contrast) for place in places if (one := of_set(task, place, effect))]
    return f"x{min(each):.2f} to x{max(each):.2f}"


def as_effect(task: str, effect: str) -> Effect:
    """The mean over sets as an effect, for what prints effects."""
    none = Contrast("", effect, effect if effect in REGISTER else None, {})
    return Effect(none, "rollout/accuracy", "", over_sets(task, effect).estimate, None)


def sets(task: str, effect: str) -> str:
    """How many sets and base policies a mean is over."""
    found = over_sets(task, effect)
    return f"{found.sets} sets, {found.bases} base policies"


ORDER = ("dynamic_sampling", FILTERING, "clip_higher", "token_level_loss", SOFT)
HEADS = {
    **{technique: REGISTER[technique].label for technique in ORDER},
    f"{SOFT} without dynamic_sampling": "soft overlong punishment without dynamic sampling",
    f"{DYNAMIC} without {SOFT}": "dynamic sampling without soft punishment",
    "interaction": "what either is worth more with the other",
}
TURNS = (f"{SOFT} without dynamic_sampling", SOFT, f"{DYNAMIC} without {SOFT}", DYNAMIC, "interaction")


def techniques() -> str:
    """Markdown: each technique around DAPO in every set, and the means over sets."""
    return _table(ORDER, lambda task, place: any(of_set(task, place, effect) for effect in ORDER))


def interaction() -> str:
    """Markdown: soft punishment and dynamic sampling, each with and without the other, in the sets that have all four
    arms."""
    return _table(TURNS, lambda task, place: of_set(task, place, "interaction") is not None)


def _table(effects: Sequence[str], shown: Callable[[str, int], bool]) -> str:
    lines = [f"| task | base policies | | {' | '.join(HEADS[effect] for effect in effects)} |"]
    lines.append("|---" * (3 + len(effects)) + "|")
    for task, each in SETS.items():
        places = [place for place in range(len(each)) if shown(task, place)]
        for place in places:
            cells_of = [_cell(task, place, effect) for effect in effects]
            found = next(one for effect in effects if (one := of_set(task, place, effect)))
            name = f"[{_numbers(found)}](../experiments/{each[place].folder.split('/')[0]})"
            lines.append(f"| {task} | {name} | {each[place].note} | {' | '.join(cells_of)} |")
        means = [_mean(task, effect) for effect in effects]
        if places and any(means):
            lines.append(f"| {task} | *mean over sets* | | {' | '.join(means)} |")
    return "\n".join(lines)


def _numbers(effect: Effect) -> str:
    """The base policies of an effect: `40 to 51`; how many, where several share a number."""
    if len(set(effect.bases)) == 1:
        return f"{effect.estimate.n} seeds of one model"
    numbers = sorted({int(base.split(" ")[0]) for base in effect.bases})
    count = len(set(effect.bases))
    of = f"{numbers[0]} to {numbers[-1]}"
    return of if count == len(numbers) else f"{of} ({count})"


def _cell(task: str, place: int, effect: str) -> str:
    found = of_set(task, place, effect)
    text = points(found.estimate) if found else ""
    return f"({text})" if found and not enters(task, place, effect) else text


def _mean(task: str, effect: str) -> str:
    if not several(task, effect):
        return ""
    found = over_sets(task, effect)
    return f"*{points(found.estimate)}*, {found.sets} sets, {found.bases} bases"
