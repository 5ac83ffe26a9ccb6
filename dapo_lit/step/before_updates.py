"""The trainer's view of a batch before its updates: old and reference log-probs, values, mismatch, corrections."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dapo_lit.objective.diagnostics import Statistics, correction_statistics, merge, mismatch_statistics
from dapo_lit.step.minibatches import minibatches
from dapo_lit.step.packing import TokenBatch
from dapo_lit.step.rollout_step import RolloutStep
from dapo_lit.step.token_axis import Scores

if TYPE_CHECKING:
    from dapo_lit.lit.module import DAPOModule


def scored_by_first_update(module: "DAPOModule", batch: RolloutStep) -> list[int]:
    """Completions that need no scoring: the forward pass of the first update tells what the policy was before it.

    None where something else asks for their log-probs before, or a later epoch may ask another rank for them.
    """
    algorithm = module.config.algorithm
    asked_before = (
        module.objective.loss.of_whole_minibatch
        or module.objective.correction is not None
        or algorithm.critic
        or algorithm.kl.where == "reward"
    )
    asked_elsewhere = algorithm.epochs > 1 and module.ranks.size > 1
    if algorithm.old_logprobs == "rollout" or asked_before or asked_elsewhere or batch.tokens is None:
        return []
    return next(minibatches(module.config, batch.tokens.group_index, batch.step, epoch=0))


@torch.no_grad()
def score(module: "DAPOModule", batch: TokenBatch, later: Sequence[int] = ()) -> tuple[Scores, Statistics]:
    """The batch before its updates, and the trainer-engine mismatch where the trainer has scored it.

    later: completions whose old log-probs, and mismatch, come from the first update.
    """
    trainers, ref, values = _forward_passes(module, batch, later)
    unscored = torch.isin(batch.completion_of_token, torch.tensor(list(later), dtype=torch.int64))
    old, corrections, statistics = batch.rollout_logprobs, None, Statistics({}, {})
    if module.config.algorithm.old_logprobs == "recompute":
        old, corrections, statistics = _beside_the_engine(module, batch, trainers, unscored)
    first = unscored if later else None
    kept_ref, kept_values = ref if module.reference else None, values if module.critic else None
    return Scores(old, kept_ref, kept_values, first, corrections), statistics


def _forward_passes(module: "DAPOModule", batch: TokenBatch, later: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """[N] of policy, reference and critic over all ranks' shares; 0 where nobody asks for one."""
    recomputes = module.config.algorithm.old_logprobs == "recompute"
    old, ref, values = (torch.zeros_like(batch.rollout_logprobs, device=module.device) for _ in range(3))
    left_out = set(later)
    now = [b for b in range(len(batch.sequences)) if b not in left_out]
    for completions, scores_policy in ((now, recomputes), (list(later), False)):
        if not completions or not (scores_policy or module.reference or module.critic):
            continue
        for micro, counts in module.micro_batches(batch, completions):
            micro = micro.to(module.device)
            place = micro.tokens if counts else micro.tokens[:0]
            if scores_policy:
                old[place] = module.logprobs(micro)[0][: len(place)]
            if module.reference:
                with module.reference.on(module.device) as reference:
                    ref[place] = module.logprobs(micro, reference)[0][: len(place)]
            if module.critic:
                values[place] = module.values(micro)[: len(place)]
    old, ref, values = (module.ranks.sum(scored.cpu()) for scored in (old, ref, values))
    return old, ref, values


def _beside_the_engine(
    module: "DAPOModule", batch: TokenBatch, trainers: Tensor, unscored: Tensor
) -> tuple[Tensor, Tensor | None, Statistics]:
    """What becomes of the trainer's own log-probs [N]: old log-probs, corrections, statistics of the mismatch."""
    # The same on every rank by now, so that one rank's part is the whole.
    is_first = module.ranks.rank == 0
    own = batch.fresh & ~unscored if is_first else torch.zeros_like(batch.fresh)
    statistics = mismatch_statistics(trainers, batch.rollout_logprobs, own)
    if module.objective.correction is None:
        # Older weights sampled a carried-over token: the engine's log-prob is that of its behaviour policy.
        old = torch.where(batch.fresh, trainers.masked_fill(unscored, torch.nan), batch.rollout_logprobs)
        return old, None, statistics
    # pi_old is the trainer's for all tokens, and the weight reaches back to whatever sampled them
    corrections = module.objective.correction(trainers, batch.rollout_logprobs, batch.completion_of_token)
    whole = corrections if is_first else corrections[:0]
    return trainers, corrections, merge(statistics, correction_statistics(whole))
