"""Looking several times at one study with one error: alpha is spent on the sign-flip distribution, look by look.

Given the absolute differences, their signs are exchangeable under the null. So the chance that an earlier look would
have rejected can be counted over the sign flips, and each look rejects only as many further flips as its share of alpha
allows (Lan and DeMets 1983, on the permutation distribution instead of the normal one). A share that the coarse
distribution of few values cannot use is left to later looks. The looks of a study are registered before its first run.
"""

from collections.abc import Sequence

import numpy as np

from ablations.compare.statistics import flips, holm, sign_flip_p

Array = np.ndarray


def planned_looks(most: int) -> tuple[int, ...]:
    """After every fourth base policy from the eighth on.

    >>> planned_looks(24), planned_looks(10), planned_looks(6)
    ((8, 12, 16, 20, 24), (8, 10), (6,))
    """
    return (*range(8, most, 4), most)


def rejections(values: Array, looks: Sequence[int], level: float) -> Array:
    """The look at which each row's mean differs from 0 at `level`; 0 at none of those reached.

    values: differences [studies, base policies], bases in the order in which they were made.
    looks: numbers of bases, ascending. Alpha is spent in proportion to the last.
    """
    reached = [look for look in looks if look <= values.shape[1]]
    found = np.zeros(len(values), dtype=int)
    if not reached:
        return found
    signs = flips(reached[-1])
    stopped = np.zeros((len(values), len(signs)), dtype=bool)
    for look in reached:
        # What earlier looks have not used is left to this one.
        allowed = int(level * look / looks[-1] * len(signs) + 1e-9) - stopped.sum(axis=1)
        sizes = np.abs(values[:, :look] @ signs[:, :look].T)
        # Flips that would have stopped earlier are gone: alpha is spent on them already.
        over = ~stopped & (sizes > _bounds(np.where(stopped, -np.inf, sizes), allowed)[:, None])
        found[(found == 0) & over[:, 0]] = look
        stopped |= over
    return found


def _bounds(sizes: Array, allowed: Array) -> Array:
    """The size that the `allowed` largest of each row exceed; fewer where the next one ties, up to rounding."""
    most = min(max(int(allowed.max()), 0), sizes.shape[1] - 1)
    # Partition before sort: only the largest few of 4,096 are needed, for thousands of simulated studies.
    largest = -np.sort(np.partition(-sizes, most, axis=1)[:, : most + 1], axis=1)
    bound = largest[np.arange(len(sizes)), np.clip(allowed, 0, most)]
    bound = np.where(allowed >= sizes.shape[1], -np.inf, bound * (1 + 1e-6))
    return np.where(allowed > 0, bound, np.inf)


def first_rejection(values: Sequence[float] | Array, looks: Sequence[int], level: float) -> int | None:
    """The look at which the mean of one value a base policy differs from 0; None at none of those reached.

    >>> first_rejection([1.0, 2.0, 3.0, 1.5, 2.5, 3.5, 1.0, 2.0], [6, 12], 0.05), first_rejection([1.0] * 6, [6], 0.03)
    (None, None)
    >>> first_rejection([1.0, 2.0, 3.0, 1.5, 2.5, 3.5, 1.0, 2.0], [8], 0.05)
    8
    """
    return int(rejections(np.asarray(values, dtype=float)[None], looks, level)[0]) or None


def decisions(comparisons: Sequence[Sequence[float] | Array], looks: Sequence[int], alpha: float) -> list[int | None]:
    """Holm over a family at every look: when each comparison was decided, None for those that are not.

    The level of a comparison is alpha over the number of those that are still undecided, so the family's error over all
    looks together is at most alpha. A single look has nothing to spend: its p counts more flips than a bound could.
    """
    if len(looks) == 1:
        p = [sign_flip_p(values[: looks[0]]) if len(values) >= looks[0] else 1.0 for values in comparisons]
        return [looks[0] if adjusted <= alpha else None for adjusted in holm(p)]
    found: list[int | None] = [None] * len(comparisons)
    while undecided := [place for place, look in enumerate(found) if look is None]:
        level = alpha / len(undecided)
        new = {place: look for place in undecided if (look := first_rejection(comparisons[place], looks, level))}
        if not new:
            break
        for place, look in new.items():
            found[place] = look
    return found


def interval(values: Sequence[float] | Array, looks: Sequence[int]) -> tuple[float, float] | None:
    """The effects that no look so far has rejected at 5 %; where effects are symmetric, valid whenever a study stops.

    None: before the first look, and where looks contradict each other so that no effect is left.

    >>> interval([0.5] * 8, [8, 12]), interval([0.5] * 4, [4, 12])  # 4 values reject nothing
    ((0.5, 0.5), (-inf, inf))
    """
    reached = [look for look in looks if look <= len(values)]
    if not reached:
        return None
    x = np.asarray(values, dtype=float)[: reached[-1]]
    center = _left(x, reached, looks)
    if center is None:
        return None
    # Where all values are equal any distance stands for all others.
    spread = float(np.ptp(x))
    width = 4 * spread or 1.0
    ends = []
    for sign in (-1.0, 1.0):
        inside, outside = 0.0, width
        for _ in range(25):
            middle = (inside + outside) / 2
            rejected = first_rejection(x - center - sign * middle, looks, 0.05)
            inside, outside = (inside, middle) if rejected else (middle, outside)
        ends.append(center + sign * ((outside if spread else 0.0) if outside < width else np.inf))
    return ends[0], ends[1]


def median_interval(values: Sequence[float] | Array, looks: Sequence[int]) -> tuple[float, float] | None:
    """The medians that no look so far has rejected at 5 % by the signs of the values.

    Exact whatever the distribution, where the interval of the mean needs symmetry. None: before the first look, or
    where looks contradict each other.

    >>> median_interval(range(1, 13), [12]), median_interval([1.0, 2.0], [2])  # of twelve, the third to the tenth
    ((3.0, 10.0), (-inf, inf))
    """
    reached = [look for look in looks if look <= len(values)]
    if not reached:
        return None
    x = np.asarray(values, dtype=float)[: reached[-1]]
    edges = np.concatenate([[-np.inf], np.unique(x), [np.inf]])
    # Between two values next to each other all medians have the same signs.
    between = [x.min() - 1, *(edges[1:-2] + edges[2:-1]) / 2, x.max() + 1]
    left = [i for i, median in enumerate(between) if decisions([np.sign(x - median)], looks, 0.05) == [None]]
    return (float(edges[left[0]]), float(edges[left[-1] + 1])) if left else None


def _left(x: Array, reached: Sequence[int], looks: Sequence[int]) -> float | None:
    """An effect that no look has rejected: the mean, or the nearest to it between the means of all looks."""
    means = [float(np.mean(x[:look])) for look in reached]
    between = sorted(np.linspace(min(means), max(means), 65).tolist(), key=lambda effect: abs(effect - means[-1]))
    return next((e for e in [means[-1], *between] if not first_rejection(x - e, looks, 0.05)), None)
