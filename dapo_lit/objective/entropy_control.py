"""Controllers of the entropy bonus: after each rollout step they move its coefficient by the policy's entropy.

A controller is `(coefficient, entropy) -> (coefficient, bonus)`: both of the next step, where the bonus is the weight
that is in effect. The two are all that it remembers, and they are in every checkpoint.
"""

from collections.abc import Callable
from math import inf

from dapo_lit.objective.needs import Needs

DELTA, MOST = 1e-4, 5e-3
"""Of the authors' script."""


@Needs(options=dict.fromkeys(("target", "delta", "least", "most"), (0, inf)), source="arXiv 2505.22312")
def towards_target(
    coefficient: float, entropy: float, *, target: float, delta: float = DELTA, least: float = 0.0, most: float = MOST
) -> tuple[float, float]:
    """Adaptive entropy control of Skywork-OR1 (arXiv 2505.22312): a step of `delta` up below the target, down above it.

        c_{k+1} = clip(c_k + delta, least, most)   if e_k <= target, and the bonus is c_{k+1}
        c_{k+1} = clip(c_k - delta, least, most)   else, and the bonus is 0

    coefficient: c_k; at first `entropy.bonus`, 0 in the paper. entropy: e_k, nats a token, `policy/entropy` of the step
    before. Once a rollout step, and the defaults, are those of the authors' code and script (EntController,
    or1_scripts/train/7b_8k.sh). TRL 1.x (`use_adaptive_entropy`) moves it at every update, with delta 0.005 and most 1.

    >>> towards_target(0.25, 0.1, target=0.2, delta=0.5, most=1.0), towards_target(0.25, 0.3, target=0.2, delta=0.125)
    ((0.75, 0.75), (0.005, 0.0))
    """
    is_low = entropy <= target
    coefficient = min(max(coefficient + (delta if is_low else -delta), least), most)
    return coefficient, coefficient if is_low else 0.0


CONTROLLERS: dict[str, Callable[..., tuple[float, float]]] = {"target": towards_target}
"""By the value of `entropy.control`."""
