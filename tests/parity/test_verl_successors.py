"""verl 0.9: the losses after DAPO (GSPO, CISPO, GMPO, Clip-Cov, KL-Cov) and PPO's value loss."""

from dataclasses import replace
from functools import partial

import ours
import pytest
import verl_peer
from batches import DRIFTED, EXTREME, FAR, MILD, RANDOM, SOME_MASKED, SPIKE, Batch
from comparison import compare
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_value_loss

from dapo_lit.objective.covariance import clip_cov_loss, kl_cov_loss
from dapo_lit.objective.losses import (
    Aggregation,
    cispo_loss,
    clipped_value_loss,
    completion_mean,
    gmpo_loss,
    gspo_loss,
    importance_ratio,
)

MASKED = [SOME_MASKED]


@pytest.mark.parametrize(("mode", "aggregation"), [("seq-mean-token-mean", "sample"), ("token-mean", "minibatch")])
def test_gspo(mode: str, aggregation: Aggregation) -> None:
    bounds = {"clip_low": 0.05, "clip_high": 0.1}  # wide enough that random batches have both sides
    compare(
        f"gspo_loss`, `completion_weights({aggregation})",
        "clip 0.05 / 0.1",
        f"verl `compute_policy_loss_gspo`, `agg_loss({mode})`",
        [*MILD, *MASKED, EXTREME, SPIKE, FAR],
        lambda batch: ours.loss(batch, ours.of_completions(gspo_loss, **bounds), aggregation),
        lambda batch: verl_peer.policy_loss(batch, "gspo", mode, low=0.05, high=0.1),
    )


def test_verl_bounds_the_log_ratio_of_gspo_by_10_nats_and_we_by_20() -> None:
    theirs = partial(verl_peer.policy_loss, mode="gspo", aggregation="seq-mean-token-mean")
    peer = "verl `compute_policy_loss_gspo`"
    mine = ours.of_completions(gspo_loss, clip_low=0.2, clip_high=0.28)
    compare("gspo_loss", "", peer, [DRIFTED], lambda b: ours.loss(b, mine, "sample"), theirs, differs="V9")

    def bounded_by_ten(batch: Batch) -> tuple[Tensor, Tensor]:
        def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, completions: Tensor) -> Tensor:
            log_ratio = completion_mean(logprobs - old, completions)
            return mine(old + log_ratio.clamp(max=10.0), old, advantages, completions)

        return ours.loss(batch, loss, "sample")

    compare("gspo_loss", "ours with the log-ratio bounded by 10 nats first", peer, [DRIFTED], bounded_by_ten, theirs)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (1.0, 4.0)])
def test_cispo(low: float, high: float) -> None:
    compare(
        "cispo_loss",
        f"clip {low:g} / {high:g}",
        "verl `compute_policy_loss_cispo`, `agg_loss(token-mean)`",
        [*MILD, *MASKED, FAR, EXTREME, SPIKE, DRIFTED],
        lambda batch: ours.loss(batch, ours.of_tokens(cispo_loss, clip_low=low, clip_high=high), "minibatch"),
        lambda batch: verl_peer.policy_loss(batch, "cispo", low=low, high=high),
    )


def gmpo(batch: Batch) -> tuple[Tensor, Tensor]:
    return ours.loss(batch, ours.of_completions(gmpo_loss, clip_low=0.4, clip_high=0.4), "sample")


def test_gmpo() -> None:
    peer = "verl `compute_policy_loss_geo_mean`"
    theirs = partial(verl_peer.policy_loss, mode="geo_mean", low=0.4, high=0.4)
    compare("gmpo_loss", "log-clip 0.4 / 0.4", peer, [*MILD, FAR], gmpo, theirs)


def test_verls_gmpo_divides_by_the_masked_completions_too() -> None:
    peer = "verl `compute_policy_loss_geo_mean`"
    theirs = partial(verl_peer.policy_loss, mode="geo_mean", low=0.4, high=0.4)
    share = len(SOME_MASKED.lengths) / int(SOME_MASKED.carries_loss.sum())

    def scaled(batch: Batch) -> tuple[Tensor, Tensor]:
        loss, gradient = theirs(batch)
        return loss * share, gradient * share

    compare("gmpo_loss", "log-clip 0.4 / 0.4", peer, MASKED, gmpo, theirs, differs="V10")
    compare("gmpo_loss", "log-clip 0.4 / 0.4; theirs x 16 / 10", peer, MASKED, gmpo, scaled)


def test_we_bound_each_log_ratio_of_gmpo_by_20_nats_and_verl_by_none() -> None:
    peer = "verl `compute_policy_loss_geo_mean`"
    theirs = partial(verl_peer.policy_loss, mode="geo_mean", low=0.4, high=0.4)
    compare("gmpo_loss", "log-clip 0.4 / 0.4", peer, [DRIFTED], gmpo, theirs, differs="V11")
    within = DRIFTED.logprobs - 19 / 30 * (DRIFTED.logprobs - DRIFTED.old_logprobs)
    batch = replace(DRIFTED, old_logprobs=within)
    compare("gmpo_loss", "log-clip 0.4 / 0.4, at 19 nats", peer, [batch], gmpo, theirs)


def candidates(batch: Batch) -> int:
    """How many tokens have a covariance between the bounds that the test gives Clip-Cov."""
    mask = batch.loss_mask
    advantages, logprobs = batch.token_advantages[mask], batch.logprobs[mask]
    covariance = (advantages - advantages.mean()) * (logprobs - logprobs.mean())
    ratio = importance_ratio(logprobs, batch.old_logprobs[mask])
    clipped = ((advantages > 0) & (ratio > 1.28)) | ((advantages < 0) & (ratio < 0.8))
    return int(((covariance > 0.2) & (covariance < 5) & ~clipped).sum())


def test_clip_cov_with_every_candidate_held_back() -> None:
    """frac = 1 holds back all candidates, so that the random choice does not matter."""
    bounds = {"clip_low": 0.2, "clip_high": 0.28, "frac": 1.0, "cov_low": 0.2, "cov_high": 5.0}
    assert all(candidates(batch) > 5 for batch in RANDOM)
    compare(
        "clip_cov_loss",
        "all candidates, covariance in (0.2, 5)",
        "verl `compute_policy_loss_clip_cov`",
        [*RANDOM, *MASKED],
        lambda batch: ours.loss(batch, ours.of_minibatch(clip_cov_loss, batch, **bounds), "minibatch"),
        lambda batch: verl_peer.policy_loss(batch, "clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.2, clip_cov_ub=5.0),
    )


@pytest.mark.parametrize("frac", [0.002, 0.2])
def test_kl_cov(frac: float) -> None:
    compare(
        "kl_cov_loss",
        f"share {frac:g}, coefficient 1",
        "verl `compute_policy_loss_kl_cov`",
        [*RANDOM, *MASKED],
        lambda batch: ours.loss(batch, ours.of_minibatch(kl_cov_loss, batch, frac=frac), "minibatch"),
        lambda batch: verl_peer.policy_loss(batch, "kl_cov", kl_cov_ratio=frac, ppo_kl_coef=1.0),
    )


@pytest.mark.parametrize("clip", [0.2, 0.5])
def test_the_value_loss(clip: float) -> None:
    """The batch's log-probs stand for values, the old ones for old values, the reference's for returns."""

    def mine(batch: Batch) -> tuple[Tensor, Tensor]:
        def loss(values: Tensor, old: Tensor, returns: Tensor, _: Tensor) -> Tensor:
            return clipped_value_loss(values, old, returns, clip=clip)[0]

        swapped = replace(batch, advantages=batch.ref_logprobs[:, 0])
        return ours.loss(swapped, loss, "minibatch")

    def theirs(batch: Batch) -> tuple[Tensor, Tensor]:
        values = batch.logprobs.clone().requires_grad_()
        returns = batch.ref_logprobs[:, :1].expand_as(values)
        loss, _ = compute_value_loss(values, returns, batch.old_logprobs, batch.loss_mask, clip)
        loss.backward()
        return loss, values.grad

    compare("clipped_value_loss", f"clip {clip:g}", "verl `compute_value_loss`", [*MILD, *MASKED], mine, theirs)


def test_the_random_batches_have_completions_clipped_on_both_sides() -> None:
    """Or the comparison of GSPO would be one of REINFORCE."""
    high = low = 0
    for batch in RANDOM:
        totals = ((batch.logprobs - batch.old_logprobs) * batch.loss_mask).sum(dim=1)
        ratio = (totals / batch.lengths).exp()
        high += int(((batch.advantages > 0) & (ratio > 1.1)).sum())
        low += int(((batch.advantages < 0) & (ratio < 0.95)).sum())
    assert high >= 10
    assert low >= 10
