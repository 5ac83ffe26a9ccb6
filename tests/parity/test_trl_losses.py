"""TRL 1.16: the losses of GRPOTrainer._compute_loss, run in a real trainer."""

from functools import partial

import ours
import pytest
import torch
import trl_peer
from batches import (
    ALL_MASKED,
    AT_THE_BOUNDS,
    DRIFTED,
    EXTREME,
    FAR,
    GARBAGE,
    MAX_RESPONSE_TOKENS,
    MILD,
    OVERFLOW,
    RANDOM,
    SOME_MASKED,
    SPIKE,
    ZERO_ADVANTAGES,
    Batch,
)
from comparison import Result, compare, difference, record
from plain_losses import losses_of

from dapo_lit.objective.covariance import top_entropy_mask
from dapo_lit.objective.losses import Aggregation, cispo_loss, clipped_policy_loss, gspo_loss
from dapo_lit.policy.attention import layout
from dapo_lit.policy.head import token_logprobs

LOSS = "TRL `GRPOTrainer._compute_loss({})`"
CLIPPED = ours.of_tokens(clipped_policy_loss, clip_low=0.2, clip_high=0.28)


def dual_clip(bound: float) -> ours.TokenLoss:
    return ours.of_tokens(clipped_policy_loss, clip_low=0.2, clip_high=0.28, clip_dual=bound)


TYPES: list[tuple[str, Aggregation]] = [
    ("dapo", "minibatch"),
    ("bnpo", "minibatch"),
    ("grpo", "sample"),
    ("dr_grpo", "constant"),
]


@pytest.mark.parametrize(("loss_type", "aggregation"), TYPES)
def test_the_clip_under_every_loss_type(loss_type: str, aggregation: Aggregation) -> None:
    compare(
        f"clipped_policy_loss`, `completion_weights({aggregation})",
        "clip 0.2 / 0.28",
        LOSS.format(loss_type),
        [*MILD, FAR, *([SOME_MASKED, ALL_MASKED] if aggregation == "minibatch" else [ALL_MASKED])],
        lambda batch: ours.loss(batch, CLIPPED, aggregation),
        partial(trl_peer.loss, loss_type=loss_type),
    )


@pytest.mark.parametrize(("loss_type", "aggregation"), TYPES[2:])
def test_trl_divides_by_the_masked_completions_too(loss_type: str, aggregation: Aggregation) -> None:
    share = len(SOME_MASKED.lengths) / int(SOME_MASKED.carries_loss.sum())

    def scaled(batch: Batch) -> Result:
        loss, gradient = trl_peer.loss(batch, loss_type=loss_type)
        return loss * share, gradient * share

    function, peer = f"completion_weights({aggregation})", LOSS.format(loss_type)
    mine = partial(ours.loss, token_loss=CLIPPED, aggregation=aggregation)
    theirs = partial(trl_peer.loss, loss_type=loss_type)
    compare(function, "", peer, [SOME_MASKED], mine, theirs, differs="T1")
    compare(function, "theirs x 16 / 10", peer, [SOME_MASKED], mine, scaled)


def test_trl_has_no_bound_on_the_log_ratio() -> None:
    mine = partial(ours.loss, token_loss=CLIPPED, aggregation="minibatch")
    theirs = partial(trl_peer.loss, loss_type="dapo")
    compare("clipped_policy_loss", "", LOSS.format("dapo"), [EXTREME, SPIKE], mine, theirs, differs="T2")
    compare("clipped_policy_loss", "", LOSS.format("dapo"), [OVERFLOW], mine, theirs, differs="T2")
    loss, gradient = mine(OVERFLOW)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert not theirs(OVERFLOW)[0].isfinite()


@pytest.mark.parametrize("delta", [3.0, 10.0])
def test_delta_is_the_dual_clip(delta: float) -> None:
    """With delta the extreme ratios agree as well: beyond it neither has a gradient, at it both have the whole one."""
    compare(
        "clipped_policy_loss",
        f"dual clip {delta:g}",
        LOSS.format("dapo, delta"),
        [*MILD, FAR, SOME_MASKED, EXTREME, SPIKE, DRIFTED],
        lambda batch: ours.loss(batch, dual_clip(delta), "minibatch"),
        partial(trl_peer.loss, loss_type="dapo", delta=delta),
    )


def test_with_delta_trls_gradient_is_not_a_number_where_the_ratio_overflows() -> None:
    mine = partial(ours.loss, token_loss=dual_clip(3.0), aggregation="minibatch")
    theirs = partial(trl_peer.loss, loss_type="dapo", delta=3.0)
    compare("clipped_policy_loss", "dual clip 3", LOSS.format("dapo, delta"), [OVERFLOW], mine, theirs, differs="T3")
    assert theirs(OVERFLOW)[0].isfinite()
    assert theirs(OVERFLOW)[1].isnan().any()
    assert mine(OVERFLOW)[1].isfinite().all()


def test_cispo() -> None:
    """TRL's epsilon_high is the bound of the ratio itself, ours is its distance from 1; TRL has no lower bound."""
    compare(
        "cispo_loss",
        "clip 1 / 4; their epsilon_high = 5",
        LOSS.format("cispo"),
        [*MILD, FAR, SOME_MASKED, EXTREME, SPIKE, DRIFTED, OVERFLOW],
        lambda batch: ours.loss(batch, ours.of_tokens(cispo_loss, clip_low=1.0, clip_high=4.0), "minibatch"),
        partial(trl_peer.loss, loss_type="cispo", epsilon_high=5.0),
    )


def test_gspo() -> None:
    bounds = {"clip_low": 0.05, "clip_high": 0.1}
    compare(
        "gspo_loss`, `completion_weights(sample)",
        "clip 0.05 / 0.1",
        LOSS.format("grpo, importance_sampling_level=sequence"),
        [*MILD, FAR],
        lambda batch: ours.loss(batch, ours.of_completions(gspo_loss, **bounds), "sample"),
        partial(trl_peer.loss, loss_type="grpo", importance_sampling_level="sequence", epsilon=0.05, epsilon_high=0.1),
    )


def test_the_kl_term() -> None:
    mine = partial(ours.loss, token_loss=CLIPPED, aggregation="minibatch", beta=0.04)
    theirs = partial(trl_peer.loss, loss_type="dapo", beta=0.04, use_bias_correction_kl=False)
    function, peer = "clipped_policy_loss` + β `kl_penalty", LOSS.format("dapo, beta")
    compare(function, "β = 0.04, k3, no bias correction", peer, [*MILD, FAR, SOME_MASKED], mine, theirs)
    compare(
        function, "β = 0.04, k3, as by default", peer, RANDOM, mine,
        partial(trl_peer.loss, loss_type="dapo", beta=0.04), differs="T8",
    )  # fmt: skip


def test_bfloat16_log_probs() -> None:
    batches = [batch.to(torch.bfloat16) for batch in [*RANDOM, ZERO_ADVANTAGES]]
    mine = partial(ours.loss, token_loss=CLIPPED, aggregation="minibatch")

    def upcast(batch: Batch) -> Result:
        loss, gradient = trl_peer.loss(batch.to(torch.float32), loss_type="dapo")
        return loss, gradient.to(torch.bfloat16)

    theirs = partial(trl_peer.loss, loss_type="dapo")
    peer = LOSS.format("dapo")
    compare("clipped_policy_loss", "bf16", peer, batches, mine, theirs, differs="T4")
    compare("clipped_policy_loss", "bf16; theirs given the same numbers in fp32", peer, batches, mine, upcast)


def test_padding_that_is_not_a_number_spoils_trls_loss() -> None:
    mine = partial(ours.loss, token_loss=CLIPPED, aggregation="minibatch")
    theirs = partial(trl_peer.loss, loss_type="dapo")
    compare("clipped_policy_loss", "", LOSS.format("dapo"), [GARBAGE], mine, theirs, differs="T5")


def test_two_updates_of_one_generation_batch_share_trls_denominator() -> None:
    """Each update of TRL divides by the generation batch's tokens over its updates, ours by its own tokens."""
    first, second = RANDOM[0], RANDOM[1]
    generated = int(first.loss_tokens.sum() + second.loss_tokens.sum())
    settings = {"loss_type": "dapo", "steps_per_generation": 2, "gradient_accumulation_steps": 1}
    function, peer = "completion_weights(minibatch)", LOSS.format("dapo, steps_per_generation=2")
    mine = partial(ours.loss, token_loss=CLIPPED, aggregation="minibatch")
    theirs = partial(trl_peer.loss, generated_tokens=generated, **settings)
    compare(function, "", peer, [first, second], mine, theirs, differs="T6")

    def scaled(batch: Batch) -> Result:
        loss, gradient = theirs(batch)
        share = generated / 2 / float(batch.loss_tokens.sum())
        return loss * share, gradient * share

    compare(function, "theirs x its mean tokens an update / the update's tokens", peer, [first, second], mine, scaled)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_real_forward_pass(temperature: float) -> None:
    """TRL's fused head against ours on one model: log-probs, entropies, and the gradient of every parameter."""
    trainer = trl_peer.trainer(loss_type="dapo", temperature=temperature)
    batch = RANDOM[2]
    inputs = trl_peer.inputs(batch)
    prompt = inputs["prompt_ids"].shape[1]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    theirs, their_entropy, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, attention, MAX_RESPONSE_TOKENS, compute_entropy=True
    )
    mask = batch.response_mask
    # ours has no padding: prompt and response of each completion, one after the other
    present = torch.cat([inputs["prompt_mask"].bool(), mask], dim=1)
    predicts = torch.cat([torch.zeros_like(present[:, : prompt - 1]), mask, torch.zeros_like(present[:, :1])], dim=1)
    logprobs, entropy = token_logprobs(
        trainer.model,
        ids[present],
        layout((batch.lengths + prompt).tolist()),
        predicts[present].nonzero().flatten(),
        inputs["completion_ids"][mask],
        temperature=temperature,
    )
    setting, batches = f"temperature {temperature:g}, tiny Qwen2", "1 random"
    peer = "TRL `GRPOTrainer._get_per_token_logps_and_entropies`"
    record("token_logprobs", f"log-probs, {setting}", peer, batches, [difference(logprobs, theirs[mask])])
    record("token_logprobs", f"entropy, {setting}", peer, batches, [difference(entropy, their_entropy[mask])])

    old = logprobs.detach() + 0.3 * torch.randn(len(logprobs), generator=torch.Generator().manual_seed(4))
    padded = torch.zeros_like(batch.logprobs).masked_scatter_(mask, old)
    their_loss = trainer._compute_loss(trainer.model, inputs | {"old_per_token_logps": padded})
    advantages = batch.token_advantages[mask]
    my_loss = losses_of(clipped_policy_loss, logprobs, old, advantages, clip_low=0.2, clip_high=0.28).sum() / len(old)
    parameters = list(trainer.model.parameters())
    their_gradients = torch.autograd.grad(their_loss, parameters)
    my_gradients = torch.autograd.grad(my_loss, parameters)
    record(
        "token_logprobs`, `clipped_policy_loss",
        f"all parameters, {setting}",
        LOSS.format("dapo"),
        batches,
        [difference(my_loss, their_loss)],
        [difference(mine, theirs) for mine, theirs in zip(my_gradients, their_gradients, strict=True)],
    )
    assert max(float(g.abs().max()) for g in my_gradients) > 0.01


def test_the_mask_of_high_entropy_tokens() -> None:
    trainer, differences = trl_peer.trainer(loss_type="dapo"), []
    for batch in [*RANDOM, SOME_MASKED]:
        for frac in (0.2, 0.5, 1.0):
            theirs = trainer.get_high_entropy_mask(batch.entropy, batch.loss_mask, 1 - frac)
            mine = top_entropy_mask(batch.entropy, batch.loss_mask, frac=frac)
            differences.append(int((mine != theirs).sum()))
    assert max(differences) <= 1
    record(
        "top_entropy_mask", "shares 0.2, 0.5 and 1; tokens chosen by one alone",
        "TRL `GRPOTrainer.get_high_entropy_mask`", "20 random, f", [float(max(differences))],
        differs="T7" if max(differences) else None,
    )  # fmt: skip


def test_at_the_bounds_tokens_are_really_there() -> None:
    mask = AT_THE_BOUNDS.response_mask
    ratios = (AT_THE_BOUNDS.logprobs - AT_THE_BOUNDS.old_logprobs).exp()[mask]
    for bound in (0.8, 1.28, 3.0):
        assert ((ratios - bound).abs() < 1e-6).sum() > 20
