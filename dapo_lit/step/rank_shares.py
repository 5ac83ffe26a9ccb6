"""Which completions of a mini-batch this rank computes: shares of equal cost, as many micro-batches on every rank."""

from collections.abc import Callable, Iterable, Sequence

import torch
from transformers import PretrainedConfig

from dapo_lit.ranks import Ranks
from dapo_lit.step.balance import CostModel, balance, balance_frac, cost_model
from dapo_lit.step.packing import MicroBatch, TokenBatch


def rank_micro_batches(
    batch: TokenBatch,
    completions: Sequence[int],
    split: Callable[[Sequence[int]], Iterable[MicroBatch]],
    ranks: Ranks,
    cost: Callable[[int], float],
) -> list[tuple[MicroBatch, bool]]:
    """This rank's micro-batches of `completions` and whether each counts.

    Every forward and backward pass of a sharded policy is a collective, so a rank with fewer micro-batches than another
    repeats the shortest completion with False: it is to weigh nothing and be measured nowhere.

    Args:
        split: completions -> micro-batches.
        cost: of a sequence of so many tokens.
    """
    if ranks.size == 1:
        return [(micro, True) for micro in split(completions)]
    costs = [cost(len(batch.sequences[b])) for b in completions]
    own = [completions[position] for position in balance(costs, ranks.size)[ranks.rank]]
    micros = [(micro, True) for micro in split(own)]
    wanted = int(ranks.stack(torch.tensor(len(micros))).max())
    shortest = min(completions, key=lambda b: len(batch.sequences[b]))
    filler = next(iter(split([shortest])))
    return micros + [(filler, False)] * (wanted - len(micros))


def rank_balance(batch: TokenBatch, completions: Sequence[int], ranks: Ranks, cost: Callable[[int], float]) -> float:
    """Mean over maximum of the ranks' cost of `completions`; 1: no rank waits for another."""
    costs = [cost(len(batch.sequences[b])) for b in completions]
    return balance_frac(costs, balance(costs, ranks.size))


def cost_of(model: PretrainedConfig) -> CostModel:
    """Multiply-adds of a sequence, from a Llama-like model's config."""
    head_dim = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return cost_model(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_heads=model.num_attention_heads,
        num_key_heads=model.num_key_value_heads,
        head_dim=head_dim,
    )
