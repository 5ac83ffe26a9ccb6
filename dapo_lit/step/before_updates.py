"""The trainer's view of a batch before its updates: old and reference log-probs, values, mismatch, corrections."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dapo_lit.config import Config
from dapo_lit.objective.diagnostics import Statistics, correction_statistics, merge, mismatch_statistics
from dapo_lit.step.forward import PolicyForward
from dapo_lit.step.objective import Objective
from dapo_lit.step.packing import TokenBatch, counter_seed
from dapo_lit.step.token_axis import TokenAxis


def scored_by_first_update(
    config: Config, objective: Objective, batch: TokenBatch, step: int, num_ranks: int
) -> list[int]:
    """Completions that need no scoring of their own: the first update's forward pass gives their old log-probs.

    Empty if something needs those log-probs earlier, or if a later epoch may need them on another rank.
    """
    algorithm = config.algorithm
    needed_earlier = (
        objective.loss.needs_whole_minibatch
        or objective.correction is not None
        or algorithm.critic
        or algorithm.kl.where == "reward"
    )
    needed_elsewhere = algorithm.epochs > 1 and num_ranks > 1
    if not objective.recomputes_old_logprobs or needed_earlier or needed_elsewhere:
        return []
    return next(batch.minibatches(algorithm.minibatch_prompts, counter_seed(config.seed, step, 0)))


@torch.no_grad()
def score(
    forward: PolicyForward, objective: Objective, batch: TokenBatch, later: Sequence[int] = ()
) -> tuple[TokenAxis, Statistics]:
    """The batch's tokens before the updates, and the statistics of the trainer-engine mismatch.

    later: completions whose old log-probs, and mismatch, come from the first update.
    """
    policy, ref, values = _forward_passes(forward, batch, later, scores_policy=objective.recomputes_old_logprobs)
    unscored = torch.isin(batch.completion_of_token, torch.tensor(list(later), dtype=torch.int64))
    old, corrections, statistics = batch.rollout_logprobs, None, Statistics({}, {})
    if objective.recomputes_old_logprobs:
        # The scores are the same on every rank by now: rank 0 measures all of them, the others nothing.
        is_first = forward.ranks.rank == 0
        measured = batch.fresh & ~unscored if is_first else torch.zeros_like(batch.fresh)
        statistics = mismatch_statistics(policy, batch.rollout_logprobs, measured)
        if objective.correction is None:
            # Older weights sampled a carried-over token: the engine's log-prob is that of its behaviour policy.
            old = torch.where(batch.fresh, policy.masked_fill(unscored, torch.nan), batch.rollout_logprobs)
        else:
            # pi_old is the trainer's for all tokens, and the weight reaches back to whatever sampled them.
            old = policy
            corrections = objective.correction(old, batch.rollout_logprobs, batch.completion_of_token)
            statistics = merge(statistics, correction_statistics(corrections if is_first else corrections[:0]))
    tokens = TokenAxis(
        loss_mask=batch.loss_mask,
        completion_tokens=batch.response_lengths[batch.completion_of_token],
        rollout_logprobs=batch.rollout_logprobs,
        fresh=batch.fresh,
        old_logprobs=old,
        unscored=unscored if later else None,
        ref_logprobs=ref if forward.reference else None,
        values=values if forward.critic else None,
        corrections=corrections,
    )
    return tokens, statistics


def _forward_passes(
    forward: PolicyForward, batch: TokenBatch, later: Sequence[int], *, scores_policy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """[N] of policy, reference and critic, from all ranks' shares, on the CPU; 0 where nothing needs it."""
    policy, ref, values = (torch.zeros_like(batch.rollout_logprobs, device=forward.device) for _ in range(3))
    now = sorted(set(range(len(batch.sequences))) - set(later))
    for completions, scores in ((now, scores_policy), (list(later), False)):
        if not completions or not (scores or forward.reference or forward.critic):
            continue
        for micro, counts in forward.micro_batches(batch, completions):
            micro = micro.to(forward.device)
            place = micro.tokens if counts else micro.tokens[:0]
            if scores:
                policy[place] = forward.logprobs(micro)[0][: len(place)]
            if forward.reference:
                with forward.reference.on(forward.device) as reference:
                    ref[place] = forward.logprobs(micro, reference)[0][: len(place)]
            if forward.critic:
                values[place] = forward.values(micro)[: len(place)]
    policy, ref, values = (forward.ranks.sum(scored.cpu()) for scored in (policy, ref, values))
    return policy, ref, values
