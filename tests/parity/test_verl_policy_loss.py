"""verl 0.9: the clipped policy loss and every `agg_loss` mode."""

from dataclasses import replace
from functools import partial

import ours
import pytest
import torch
import verl_peer
from batches import (
    ALL_MASKED,
    AT_THE_BOUNDS,
    EXTREME,
    FAR,
    GARBAGE,
    MAX_RESPONSE_TOKENS,
    MILD,
    RANDOM,
    SOME_MASKED,
    SPIKE,
    Batch,
)
from comparison import ROWS, Result, compare, difference, record
from plain_losses import losses_of
from torch import Tensor
from verl.trainer.ppo.core_algos import kl_penalty as verl_kl_penalty

from dapo_lit.objective.losses import Aggregation, KLEstimator, clipped_policy_loss, kl_penalty

VANILLA = "verl `compute_policy_loss_vanilla`"
MODES: list[tuple[str, Aggregation, int]] = [
    ("token-mean", "minibatch", MAX_RESPONSE_TOKENS),
    ("seq-mean-token-mean", "sample", MAX_RESPONSE_TOKENS),
    ("seq-mean-token-sum", "constant", 1),
    ("seq-mean-token-sum-norm", "constant", MAX_RESPONSE_TOKENS),
]
"""verl's mode, our aggregation, our max_response_tokens: a sum is a mean over a constant length of 1."""


def clipped(batch_logprobs: Tensor, old: Tensor, advantages: Tensor, _: Tensor, **bounds: float) -> Tensor:
    return losses_of(
        clipped_policy_loss, batch_logprobs, old, advantages, **({"clip_low": 0.2, "clip_high": 0.28} | bounds)
    )


@pytest.mark.parametrize(("mode", "aggregation", "limit"), MODES)
def test_the_clip_under_every_aggregation(mode: str, aggregation: Aggregation, limit: int) -> None:
    compare(
        f"clipped_policy_loss`, `completion_weights({aggregation})",
        "clip 0.2 / 0.28",
        f"{VANILLA}, `agg_loss({mode})`",
        [*MILD, SOME_MASKED, EXTREME, SPIKE],
        lambda batch: ours.loss(batch, clipped, aggregation, max_response_tokens=limit),
        lambda batch: verl_peer.policy_loss(batch, aggregation=mode, scale=MAX_RESPONSE_TOKENS),
    )


@pytest.mark.parametrize("dual", [3.0, 10.0])
def test_the_dual_clip(dual: float) -> None:
    compare(
        "clipped_policy_loss",
        f"dual clip {dual:g}",
        VANILLA,
        [*(batch for batch in MILD if batch is not AT_THE_BOUNDS), SOME_MASKED, EXTREME, SPIKE],
        lambda batch: ours.loss(batch, partial(clipped, clip_dual=dual), "minibatch"),
        lambda batch: verl_peer.policy_loss(batch, dual=dual),
    )


def test_at_a_ratio_of_exactly_the_dual_bound_verl_takes_half_the_gradient() -> None:
    def mine(batch: Batch) -> Result:
        return ours.loss(batch, partial(clipped, clip_dual=3.0), "minibatch")

    def theirs(batch: Batch) -> Result:
        return verl_peer.policy_loss(batch, dual=3.0)

    compare("clipped_policy_loss", "dual clip 3", VANILLA, [AT_THE_BOUNDS], mine, theirs, differs="V15")
    (loss, gradient), (their_loss, half) = mine(AT_THE_BOUNDS), theirs(AT_THE_BOUNDS)
    assert difference(loss, their_loss) <= 1e-6
    apart = (gradient - half).abs() > 1e-6
    assert torch.equal(half[apart] * 2, gradient[apart])
    ratio = (AT_THE_BOUNDS.logprobs - AT_THE_BOUNDS.old_logprobs).exp()
    assert ((ratio[apart] - 3).abs() < 1e-6).all()


def test_a_symmetric_clip() -> None:
    compare(
        "clipped_policy_loss",
        "clip 0.2 / 0.2",
        VANILLA,
        [*MILD, EXTREME],
        lambda batch: ours.loss(batch, partial(clipped, clip_high=0.2), "minibatch"),
        lambda batch: verl_peer.policy_loss(batch, high=0.2),
    )


@pytest.mark.parametrize(("mode", "aggregation", "limit"), MODES)
def test_with_everything_masked_verl_divides_by_zero(mode: str, aggregation: Aggregation, limit: int) -> None:
    compare(
        f"completion_weights({aggregation})",
        "",
        f"verl `agg_loss({mode})`",
        [ALL_MASKED],
        lambda batch: ours.loss(batch, clipped, aggregation, max_response_tokens=limit),
        lambda batch: verl_peer.policy_loss(batch, aggregation=mode, scale=MAX_RESPONSE_TOKENS),
        differs="V1",
    )
    value, gradient = ours.loss(ALL_MASKED, clipped, aggregation, max_response_tokens=limit)
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_verls_trainer_counts_masked_completions_in_its_sequence_means() -> None:
    size = len(SOME_MASKED.lengths)
    carrying = int(SOME_MASKED.carries_loss.sum())

    def theirs(batch: Batch, share: float) -> tuple[Tensor, Tensor]:
        loss, gradient = verl_peer.policy_loss(batch, aggregation="seq-mean-token-mean", global_batch_size=size)
        return loss * share, gradient * share

    setting, peer = "global_batch_size given, as in training", "verl `agg_loss(seq-mean-token-mean)`"
    function = "completion_weights(sample)"
    mine = partial(ours.loss, token_loss=clipped, aggregation="sample")
    compare(function, setting, peer, [SOME_MASKED], mine, lambda batch: theirs(batch, 1.0), differs="V2")
    compare(
        function, f"{setting}; theirs x {size} / {carrying}", peer, [SOME_MASKED], mine,
        lambda batch: theirs(batch, size / carrying),
    )  # fmt: skip


def test_without_a_loss_scale_factor_verls_constant_is_the_width_of_the_padding() -> None:
    setting, peer = "loss_scale_factor not set", "verl `agg_loss(seq-mean-token-sum-norm)`"
    narrow = [batch_cut_to_its_longest(batch) for batch in RANDOM]
    for limit, differs in ((MAX_RESPONSE_TOKENS, "V3"), (None, None)):
        compare(
            "completion_weights(constant)",
            f"{setting}; ours with {'the run' if limit else 'the batch'}'s longest response",
            peer,
            [batch for batch in narrow if batch.logprobs.shape[1] < MAX_RESPONSE_TOKENS],
            lambda batch, limit=limit: ours.loss(
                batch, clipped, "constant", max_response_tokens=limit or batch.logprobs.shape[1]
            ),
            lambda batch: verl_peer.policy_loss(batch, aggregation="seq-mean-token-sum-norm"),
            differs=differs,
        )


def test_the_mean_of_micro_batch_means() -> None:
    """What verl's actor did before 0.9: each micro-batch's own mean, weighted by its share of the completions."""

    def rows_of(batch: Batch, rows: slice) -> Batch:
        return replace(batch, **{name: value[rows] for name, value in vars(batch).items() if name != "name"})

    def theirs(batch: Batch) -> tuple[Tensor, Tensor]:
        parts = [verl_peer.policy_loss(rows_of(batch, slice(start, start + 4))) for start in range(0, 16, 4)]
        return sum(loss for loss, _ in parts) / 4, torch.cat([gradient for _, gradient in parts]) / 4

    compare(
        "clipped_policy_loss`, `completion_weights(microbatch)",
        "4 micro-batches of 4",
        f"{VANILLA}, `agg_loss(token-mean)` of each micro-batch / 4",
        MILD,
        lambda batch: ours.loss(batch, clipped, "microbatch", micro_batch=torch.arange(16) // 4),
        theirs,
    )


def batch_cut_to_its_longest(batch: Batch) -> Batch:
    width = int(batch.lengths.max())
    names = ("logprobs", "old_logprobs", "ref_logprobs", "entropy")
    return replace(batch, **{name: getattr(batch, name)[:, :width] for name in names})


def test_padding_that_is_not_a_number_stays_out_of_the_loss() -> None:
    compare(
        "clipped_policy_loss",
        "",
        f"{VANILLA}, `agg_loss(token-mean)`, loss only",
        [GARBAGE],
        lambda batch: (ours.loss(batch, clipped, "minibatch")[0], None),
        lambda batch: (verl_peer.policy_loss(batch)[0], None),
    )
    compare(
        "completion_weights(sample)",
        "",
        "verl `agg_loss(seq-mean-token-mean)`",
        [GARBAGE],
        lambda batch: ours.loss(batch, clipped, "sample"),
        lambda batch: verl_peer.policy_loss(batch, aggregation="seq-mean-token-mean"),
        differs="V4",
    )
    value, gradient = ours.loss(GARBAGE, clipped, "sample")
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_bfloat16_log_probs_lose_in_verl_what_we_keep() -> None:
    batches = [batch.to(torch.bfloat16) for batch in [*RANDOM, EXTREME]]
    mine = partial(ours.loss, token_loss=clipped, aggregation="minibatch")
    compare("clipped_policy_loss", "bf16", VANILLA, batches, mine, verl_peer.policy_loss, differs="V5")

    def upcast(batch: Batch) -> tuple[Tensor, Tensor]:
        loss, gradient = verl_peer.policy_loss(batch.to(torch.float32))
        return loss, gradient.to(torch.bfloat16)  # as ours arrives at bf16 log-probs

    compare("clipped_policy_loss", "bf16; theirs given the same numbers in fp32", VANILLA, batches, mine, upcast)
    for batch in batches:
        exact, _ = mine(batch.to(torch.float64))
        assert difference(mine(batch)[0], exact) < 1e-6
    worst = max(difference(verl_peer.policy_loss(b)[0], mine(b.to(torch.float64))[0]) for b in batches)
    assert worst > 1e-3


def kl(batch: Batch, estimator: KLEstimator, theirs: bool) -> tuple[Tensor, Tensor]:
    logprobs = batch.logprobs.clone().requires_grad_()
    function = verl_kl_penalty if theirs else kl_penalty
    values = function(logprobs, batch.ref_logprobs, estimator)
    values.sum().backward()
    return values, logprobs.grad / batch.loss_tokens.sum()  # compare() multiplies by it


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_estimators(estimator: KLEstimator) -> None:
    compare(
        "kl_penalty",
        estimator,
        "verl `kl_penalty`",
        MILD if estimator == "k3" else [*MILD, EXTREME, SPIKE],
        lambda batch: kl(batch, estimator, theirs=False),
        lambda batch: kl(batch, estimator, theirs=True),
    )


def test_verl_stops_the_k3_estimate_at_10_nats() -> None:
    compare(
        "kl_penalty", "k3", "verl `kl_penalty`", [FAR, EXTREME], lambda batch: kl(batch, "k3", theirs=False),
        lambda batch: kl(batch, "k3", theirs=True), differs="V6",
    )  # fmt: skip
    reference, policy = torch.tensor([0.0]), torch.tensor([-3.0])  # exp(3) - 1 - 3 = 16.09
    assert verl_kl_penalty(policy, reference, "k3").item() == 10
    assert kl_penalty(policy, reference, "k3").item() == pytest.approx(16.0855, abs=1e-4)


def test_the_kl_term_of_the_loss() -> None:
    beta = 0.04

    def theirs(batch: Batch) -> tuple[Tensor, Tensor]:
        policy, gradient = verl_peer.policy_loss(batch)
        logprobs = batch.logprobs.clone().requires_grad_()
        values = verl_kl_penalty(logprobs, batch.ref_logprobs, "k3")
        term = beta * verl_peer.agg_loss(values, batch.loss_mask, "token-mean")
        term.backward()
        return policy.detach() + term, gradient + logprobs.grad

    compare(
        "clipped_policy_loss` + β `kl_penalty", "β = 0.04, k3", f"{VANILLA} + `kl_penalty`, `agg_loss(token-mean)`",
        [*MILD, SOME_MASKED], lambda batch: ours.loss(batch, clipped, "minibatch", beta=beta), theirs,
    )  # fmt: skip


def test_the_difference_of_not_a_number_is_never_taken_for_agreement() -> None:
    with pytest.raises(AssertionError, match="does not explain"):
        record("f", "", "verl g", "", [difference(torch.tensor(0.0), torch.tensor(torch.nan))])
    ROWS.pop()
