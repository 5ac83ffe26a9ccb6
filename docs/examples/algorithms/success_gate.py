"""prime-rl's length penalty, gated on success, as a penalty: `algorithm.overlong.punish=success_gate.success_gate`.

Wrong answers pay nothing for their length, so that among failures the shorter one is not preferred. Right answers pay
the group's pass rate: where few are right, length may be what it takes.
"""

from torch import Tensor

from dapo_lit.objective.needs import Needs


@Needs(source="prime-rl, pull requests 2702 (gate_by_correctness) and 3376")
def success_gate(correct: Tensor) -> Tensor:
    """`mean(correct) * correct_i`, [G]: the share of its length penalty that an answer pays.

    Two right of four: the right ones pay 2/4 of theirs, the wrong ones 0.

    >>> import torch
    >>> success_gate(torch.tensor([True, False, True, False])).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    passed = correct.double()
    return passed.mean() * passed
