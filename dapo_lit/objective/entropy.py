"""The tokens at which the policy decides: those of highest entropy."""

import torch
from torch import Tensor


def top_entropy_mask(entropy: Tensor, mask: Tensor, *, frac: float) -> Tensor:
    """Forking tokens (arXiv 2506.01939, section 5): True at the share `frac` of the tokens with the highest entropy.

    The threshold is that of the mini-batch. The other tokens' loss is 0 and the denominator stays the number of all
    tokens, as in the paper's equation.

    Args:
        entropy: [N] nats of the full next-token distribution at each token of a mini-batch.
        mask: [N] bool, the tokens that carry loss; others are neither counted nor chosen.
        frac: share that is kept, in (0, 1]; the paper's main result has 0.2.

    Returns:
        [N] bool. All tokens at exactly the threshold are kept, so ties can make them more than `frac`.

    Raises:
        ValueError: `frac` outside (0, 1].

    >>> top_entropy_mask(torch.tensor([0.1, 2.0, 0.0, 1.0, 3.0]), torch.tensor([True] * 4 + [False]), frac=0.5)
    tensor([False,  True, False,  True, False])
    """
    if not 0 < frac <= 1:
        raise ValueError(f"frac must lie in (0, 1], got {frac}")
    mask = mask.bool()
    if not mask.any():
        return mask
    candidates = entropy[mask].detach()
    count = max(1, round(frac * len(candidates)))
    return mask & (entropy.detach() >= torch.topk(candidates, count).values[-1])
