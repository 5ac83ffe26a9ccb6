"""Splits sequences over ranks by cost, and within a rank into micro-batches by tokens. Pure functions.

A rank with more work makes all others wait, and under a sharded policy every rank must run the same number of
micro-batches. Matrix products cost linearly in a sequence's tokens, attention quadratically.
"""

import heapq
from collections.abc import Callable, Sequence

from transformers import PretrainedConfig


def cost_of(model: PretrainedConfig) -> Callable[[int], float]:
    """Multiply-adds of a forward pass over one sequence, by its tokens, from the config of a Llama-like model.

    Without the head, which is linear in the tokens that are scored. A backward pass costs twice that: the shares stay
    the same. A layer multiplies each token with the projections of queries, keys, values and output and with the three
    matrices of the gated MLP. Causal attention takes s^2 / 2 products of head_dim per head, for scores and for values.
    """
    head_dim = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    keys = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    # GPT-2 and OPT have other names for the width of the MLP, and GPT-2 may leave it at four times the hidden size.
    widths = (getattr(model, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner"))
    width = next(filter(None, widths), 4 * model.hidden_size)
    projections = model.hidden_size * head_dim * (2 * model.num_attention_heads + 2 * keys)
    linear = float(model.num_hidden_layers * (projections + 3 * model.hidden_size * width))
    quadratic = float(model.num_hidden_layers * model.num_attention_heads * head_dim)
    return lambda tokens: linear * tokens + quadratic * tokens * tokens


def balance(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Splits items over ranks so that the largest rank's cost is small: the longest processing time rule.

    Each item, the most expensive first, goes to the rank that has least so far. The largest sum is at most 4/3 of the
    best possible (Graham 1969); with many items per rank it is close to the best.

    Returns the indices of each rank's items, ascending; empty for some ranks if there are fewer items than ranks.

    >>> balance([5, 4, 3, 3, 3], ranks=2)
    [[0, 3], [1, 2, 4]]
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    # (cost, items, rank): at equal cost the rank with fewer items comes first, so that items of cost 0 are spread too.
    least = [(0.0, 0, rank) for rank in range(ranks)]
    # Ties by index: every rank must find the same split.
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        cost, items, rank = heapq.heappop(least)
        shares[rank].append(index)
        heapq.heappush(least, (cost + costs[index], items + 1, rank))
    return [sorted(share) for share in shares]


def balance_frac(costs: Sequence[float], shares: Sequence[Sequence[int]]) -> float:
    """`perf/balance`: mean over maximum of the shares' costs, 1 when all have the same."""
    sums = [sum(costs[i] for i in share) for share in shares]
    return sum(sums) / len(sums) / max(sums) if max(sums, default=0.0) else 1.0


def first_fit(tokens: Sequence[int], budget: int) -> list[list[int]]:
    """Packs items into bins of at most `budget` tokens: first fit, the longest item first.

    At most 11/9 of the fewest possible bins and one more (Johnson 1973). An item above the budget has a bin of its own.
    Returns the indices of each bin's items, longest first.

    >>> first_fit([5, 4, 3, 3], budget=8)
    [[0, 2], [1, 3]]
    """
    bins: list[list[int]] = []
    free: list[int] = []
    # Longest first, or short ones fill the bins and leave gaps that no long one fits.
    for index in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        for place, room in enumerate(free):
            if tokens[index] <= room:
                bins[place].append(index)
                free[place] -= tokens[index]
                break
        else:
            bins.append([index])
            free.append(budget - tokens[index])
    return bins
