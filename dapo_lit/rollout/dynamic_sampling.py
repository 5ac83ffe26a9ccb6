"""Dynamic sampling (DAPO 3.2, Eq. 11): which groups are trained on, and how many to ask for next.

Groups are accepted in submission order, never in order of completion: short answers end first, and a batch filled by
whoever ends first would favour them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dapo_lit.rollout.records import Group


@dataclass
class KeepRate:
    """Running estimate of the share of groups that are mixed.

    Counts are halved at the end of each step, so that the estimate follows the policy.
    """

    kept: float = 0.0
    generated: float = 0.0

    @property
    def value(self) -> float:
        """1 while nothing is known; at least 1 / (generated + 1), so that a request stays finite."""
        if self.generated == 0:
            return 1.0
        return max(self.kept, self.generated / (self.generated + 1)) / self.generated

    def update(self, kept: int, generated: int) -> None:
        self.kept += kept
        self.generated += generated

    def end_step(self) -> None:
        self.kept /= 2
        self.generated /= 2


def groups_to_request(missing: int, keep_rate: float, allowance: int) -> int:
    """How many groups to submit so that `missing` mixed ones are expected, within what may still be generated.

    >>> groups_to_request(missing=12, keep_rate=0.6, allowance=100)
    20
    """
    return min(allowance, math.ceil(missing / keep_rate - 1e-9))


def accept(kept: Sequence[Group], num_prompts: int) -> tuple[list[Group], list[Group]]:
    """The first `num_prompts` kept groups in submission order, and the surplus."""
    in_order = sorted(kept, key=lambda group: (group.step, group.index))
    return in_order[:num_prompts], in_order[num_prompts:]


def sampling_metrics(
    generated: Sequence[Group],
    accepted: Sequence[Group],
    carried_out: Sequence[Group],
    num_prompts: int,
    filters: bool,
) -> dict[str, float]:
    """`sampling/*`: every group generated in a step is accepted, carried on, filtered out (unmixed) or surplus.

    Args:
        generated: groups generated in this step, those of an earlier step that were carried in excluded.
        accepted: groups trained on, carried-in ones included.
        carried_out: kept for the next step.
        filters: dynamic sampling is on; off, no group is filtered.
    """
    used = {id(group) for group in (*accepted, *carried_out)}
    unused = [group for group in generated if id(group) not in used]
    tokens = _tokens(generated)
    filtered = _tokens([g for g in unused if filters and not g.mixed])
    surplus = _tokens(unused) - filtered
    return {
        "sampling/rounds": len(generated) / num_prompts,
        "sampling/groups_generated": len(generated),
        "sampling/groups_kept": sum(g.mixed for g in generated) if filters else len(generated),
        "sampling/groups_surplus": sum(1 for g in unused if g.mixed or not filters),
        "sampling/groups_carried_in": len(accepted) - sum(1 for g in generated if id(g) in {id(a) for a in accepted}),
        "sampling/tokens_filtered_frac": filtered / tokens if tokens else 0.0,
        "sampling/tokens_surplus_frac": surplus / tokens if tokens else 0.0,
        "sampling/tokens_wasted_frac": (filtered + surplus) / tokens if tokens else 0.0,
    }


def _tokens(groups: Sequence[Group]) -> int:
    return sum(c.num_tokens for g in groups for c in g.completions)
