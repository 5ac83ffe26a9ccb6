"""Which design answers "which technique matters?" within a budget, and what it will be able to see.

The committed factorial studies say how much a main effect varies from base policy to base policy. Another model and
task vary by other amounts; these are the only ones that were measured.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from ablations.compare.advice import Found
from ablations.compare.statistics import smallest_effect
from ablations.designs import ARMS

LEAST, MOST = 6, 12
"""Seeds: with fewer than six nothing can be decided, and twelve see a standard deviation's effect."""


@dataclass(frozen=True)
class Affordable:
    """A design with a number of seeds that fit a budget."""

    design: str
    """A word of `study.arms`."""
    seeds: int
    minutes: float

    @property
    def runs(self) -> int:
        return len(ARMS[self.design]()) * self.seeds

    @property
    def families(self) -> dict[str, float] | None:
        """The registered families, for `study.families`; None: the design's own."""
        return None if self.design == "leave_one_out" else {"main effects": 0.025, "interactions": 0.025}

    @property
    def words(self) -> str:
        """The design in a few words."""
        return {
            "cube": "all 32 combinations of the five techniques",
            "half_fraction": "half of the 32 combinations, which tells main effects and pairs of techniques apart",
            "leave_one_out": "DAPO, and DAPO with each technique in its other position",
        }[self.design]

    def noise(self, of_a_pair: float) -> float:
        """That of an effect of this design from that of one difference of two runs: a main effect is a mean of many."""
        return of_a_pair if self.design == "leave_one_out" else of_a_pair / (len(ARMS[self.design]()) / 2) ** 0.5

    def finds(self, sd: float) -> float:
        """The smallest effect found with a power of 80 %, in the unit of `sd`, that of an effect over seeds."""
        return (smallest_effect(self.seeds) or float("inf")) * sd


DESIGNS = ("cube", "half_fraction", "leave_one_out")
"""Words of `study.arms`, largest first."""


def affordable(minutes: Mapping[str, float], workers: int, budget: float | None) -> Affordable | None:
    """The design for a budget of minutes; None: not even the smallest fits. Without a budget: half of the combinations.

    minutes: what a run of each arm takes, by its name.

    All combinations if twelve seeds fit; else half of them, with up to twelve; else one technique at a time. More seeds
    before more arms, as seeds are what a conclusion is drawn over.

    >>> alike = {arm.name: 1.0 for design in DESIGNS for arm in ARMS[design]()}
    >>> [affordable(alike, 2, budget).design for budget in (192, 191, 48, 47)]
    ['cube', 'half_fraction', 'half_fraction', 'leave_one_out']
    >>> affordable(alike, 2, 17) is None
    True
    """
    for design, least in zip(DESIGNS, (MOST, LEAST, LEAST), strict=True):
        of_a_seed = sum(minutes[arm.name] for arm in ARMS[design]()) / workers
        if budget is None and design == "half_fraction":
            return Affordable(design, LEAST, LEAST * of_a_seed)
        if budget is not None and budget >= least * of_a_seed * (1 - 1e-9):
            seeds = min(MOST, int(budget / of_a_seed + 1e-9))
            return Affordable(design, seeds, seeds * of_a_seed)
    return None


def committed_sds(design: str, found: Iterable[Found]) -> list[float]:
    """Standard deviations of an effect over base policies, in points, in the committed studies of the design."""
    factorial = design != "leave_one_out"
    kinds = ("factorial", "half factorial") if factorial else ("left out",)
    # Of three base policies a standard deviation says little; there is no larger study that leaves out each.
    least = LEAST if factorial else 3
    return sorted(each.sd for each in found if each.study.split(",")[0] in kinds and each.n >= least)


def sight(choice: Affordable, found: Iterable[Found]) -> str:
    """What the design will be able to see, in a sentence."""
    sds = committed_sds(choice.design, found)
    typical, ends = choice.finds(median(sds)), [choice.finds(sds[0]), choice.finds(sds[-1])]
    return (
        f"with {choice.seeds} seeds, effects of {typical:.1f} points of accuracy ({ends[0]:.1f} to {ends[1]:.1f}) "
        f"if they vary as in {len(sds)} effects of committed studies of this design, in tasks of policies made here"
    )
