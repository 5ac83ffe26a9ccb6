"""One denominator whatever the micro-batches, rollouts from the newest weights, updates that are skipped."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import Run, collected_step, rows, scored

from dapo_lit.lit.module import DAPOModule
from dapo_lit.objective.tokens import Tokens
from dapo_lit.seeds import loss_seed
from dapo_lit.step.batch import MicroBatch, RolloutStep
from dapo_lit.step.optimizer import NonFiniteError
from dapo_lit.step.scoring import PolicyForward, scored_by_first_update
from dapo_lit.step.updates import StepUpdates


def shift_weights(module: DAPOModule) -> None:
    """Moves policy and critic a little, so that ratios are not 1, values not 0, and the reference is left behind."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


def gradient_of_a_mini_batch(module: DAPOModule, step: RolloutStep, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """[parameters] of the whole rollout step as one mini-batch."""
    assert step.tokens is not None
    monkeypatch.setattr(DAPOModule, "manual_backward", lambda self, loss: loss.backward())
    tokens, statistics = scored(module, step.tokens)
    tokens = replace(tokens, old_logprobs=step.tokens.rollout_logprobs)  # of the weights before they were shifted
    updates = module.step_updates(step.step, step.tokens, tokens, statistics)
    updates.has_updated = True
    module.zero_grad()
    updates.accumulate_gradient(list(range(len(step.tokens.sequences))), epoch=0)
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    "switches",
    [
        [],
        ["algorithm.techniques.overlong_filtering=true", "task.max_response_tokens=8"],
        ["algorithm=kl_cov", "algorithm.loss_options.frac=0.2"],
        ["algorithm=ppo", "algorithm.critic.warmup_steps=0"],
    ],
)
def test_the_gradient_of_a_mini_batch_is_the_same_for_any_micro_batch_size(compose, monkeypatch, switches):
    config = compose("budget.steps=1", "algorithm.num_prompts=8", "algorithm.minibatch_prompts=8", *switches)
    module, step = collected_step(config, monkeypatch)
    shift_weights(module)
    assert step.tokens is not None
    assert step.tokens.response_lengths.unique().numel() > 3  # unequal lengths, or the test says nothing
    gradients = []
    for budget, shares in ((10_000, False), (61, False), (61, True), (99, "prefixes"), (99, "branches")):
        forward = replace(module.policy_forward, micro_batch_tokens=budget, shared_prompt=shares)
        monkeypatch.setattr(module, "policy_forward", forward)
        gradients.append(gradient_of_a_mini_batch(module, step, monkeypatch))
    assert gradients[0].norm() > 1e-4
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("updated", [False, True])
def test_before_the_first_update_the_sign_of_rounding_is_no_direction(compose, monkeypatch, updated):
    """KL-Cov penalises |log r|: at ratio 1 old log-probs of another pass would push by the sign of their rounding."""
    penalised = ["algorithm=kl_cov", "algorithm.loss_options={frac: 0.5, coefficient: 1.5}"]
    config = compose("budget.steps=1", "algorithm.techniques.dynamic_sampling=true", *penalised)
    module, step = collected_step(config, monkeypatch)
    assert step.tokens is not None
    monkeypatch.setattr(DAPOModule, "manual_backward", lambda self, loss: loss.backward())
    tokens, statistics = scored(module, step.tokens)
    gradients = []
    for rounding in (1e-6, -1e-6):
        rounded = replace(tokens, old_logprobs=tokens.old_logprobs + rounding)
        updates = module.step_updates(step.step, step.tokens, rounded, statistics)
        updates.has_updated = updated
        module.zero_grad()
        updates.accumulate_gradient(next(step.tokens.minibatches(config.algorithm.minibatch_prompts, 0)), epoch=0)
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
    apart = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
    assert apart > 0.1 if updated else apart == 0.0


TWO_PASSES = {
    "gmpo": ["algorithm=gmpo"],
    "clip_cov": ["algorithm=clip_cov", "algorithm.loss_options.frac=0.02", "algorithm.loss_options.cov_low=0.01"],
    "top_entropy": ["algorithm.entropy.top_frac=0.2"],
}


@pytest.mark.parametrize("name", TWO_PASSES)
def test_two_passes_have_the_gradient_of_the_loss_of_all_tokens_at_once(compose, monkeypatch, name):
    mixed = "algorithm.techniques.dynamic_sampling=true"  # or all advantages may be 0
    config = compose(*TWO_PASSES[name], mixed, "budget.steps=1", "trainer.micro_batch_tokens=100000")
    module, step = collected_step(config, monkeypatch)
    shift_weights(module)
    two_passes = gradient_of_a_mini_batch(module, step, monkeypatch)
    batch, everything = step.tokens, list(range(len(step.tokens.sequences)))
    forward = module.policy_forward
    ((micro, _),) = forward.micro_batches(batch, everything)
    logprobs, entropy = forward.logprobs(micro)
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=batch.rollout_logprobs[micro.tokens],
        advantages=scored(module, batch)[0].advantages[micro.tokens],
        completions=micro.completions,
        mask=torch.ones(len(logprobs), dtype=torch.bool),
        entropy=entropy,
        generator=torch.Generator().manual_seed(loss_seed(config.seed, step.step, 0, everything)),
    )
    if name == "clip_cov":  # draws among the tokens in their order
        order = micro.tokens.argsort()
        tokens = Tokens(**{f: v[order] if isinstance(v, torch.Tensor) else v for f, v in vars(tokens).items()})
    weights = module.objective.weights(batch.loss_tokens, batch.group_index).float()[tokens.completions]
    module.zero_grad()
    losses, _ = module.objective.policy_loss(tokens, module.objective.bounds)
    (losses * weights).sum().backward()
    at_once = torch.cat([p.grad.flatten() for p in module.parameters()])
    assert at_once.norm() > 1e-4
    torch.testing.assert_close(two_passes, at_once, rtol=1e-4, atol=1e-6)


def test_a_batch_of_older_weights_is_refused(compose, monkeypatch):
    config = compose("budget.steps=1")
    original = DAPOModule.make_updates
    module, step = collected_step(config, monkeypatch)
    module.policy_version = 7
    with pytest.raises(RuntimeError, match="fetched ahead"):
        original(module, step)


def test_a_loss_that_is_not_finite_skips_the_update_and_ends_the_run_after_some(compose, monkeypatch):
    monkeypatch.setattr("dapo_lit.lit.module.MAX_BAD_UPDATES", 3)
    run = Run(compose())
    monkeypatch.setattr(StepUpdates, "accumulate_gradient", lambda self, minibatch, epoch: torch.tensor(torch.nan))
    with pytest.raises(NonFiniteError, match="step 2"):
        run.fit()
    assert run.module.counters.gradient_step == 0
    assert sum(row.get("optim/bad_updates", 0) for row in rows(run.folder.path)) == 3  # the row of the last step too
    assert [checkpoint.name for checkpoint in run.folder.checkpoints] == ["step_000002.ckpt"]


def test_with_one_update_a_step_nothing_is_scored_before_and_the_ratio_is_exactly_one(compose, monkeypatch):
    calls: list[MicroBatch] = []
    monkeypatch.setattr(PolicyForward, "logprobs", lambda self, micro, model=None: calls.append(micro))
    run = Run(compose("budget.steps=2", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=4"))
    run.fit()
    assert calls == []
    assert rows(run.folder.path)[-1]["gradient_step"] == 2
    for row in rows(run.folder.path)[1:]:
        assert row["policy/ratio_max"] == 1.0
        assert row["policy/kl_old"] == 0.0
        assert 0 < row["mismatch/prob_diff_max"] < 1e-4


def test_the_first_update_scores_its_own_mini_batch_and_the_mismatch_is_still_that_of_all_tokens(compose, monkeypatch):
    sizes = ("algorithm.num_prompts=4", "algorithm.minibatch_prompts=2")
    config = compose("budget.steps=1", "rollout.temperature=0.7", *sizes)
    module, step = collected_step(config, monkeypatch)
    assert step.tokens is not None
    everything, whole = scored(module, step.tokens)
    later = scored_by_first_update(config, module.objective, step.tokens, step.step, num_ranks=1)
    assert 0 < len(later) < len(step.tokens.sequences)
    tokens, statistics = scored(module, step.tokens, later)
    assert tokens.unscored is not None
    assert tokens.unscored.nonzero().flatten().unique_consecutive().numel() == int(
        step.tokens.response_lengths[later].sum()
    )
    assert step.tokens.fresh.all()
    assert torch.equal(tokens.old_logprobs[tokens.unscored], step.tokens.rollout_logprobs[tokens.unscored])
    monkeypatch.setattr(DAPOModule, "manual_backward", lambda self, loss: loss.backward())
    updates = module.step_updates(step.step, step.tokens, tokens, statistics)
    updates.accumulate_gradient(later, epoch=0)
    torch.testing.assert_close(updates.on_device.old_logprobs, everything.old_logprobs, rtol=0, atol=5e-6)
    assert updates.statistics.sums["mismatch_tokens"] == whole.sums["mismatch_tokens"]


def test_a_checkpoint_holds_the_generators_of_every_rank_and_a_resumed_run_draws_what_it_would_have_drawn(compose):
    def drawn() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    run = Run(compose("budget.steps=1"))
    run.fit()
    expected = drawn()
    saved = torch.load(run.folder.checkpoints[-1], weights_only=False)
    assert len(saved["dapo_lit"]["random"]) == 1
    assert drawn() != expected
    run.module.on_load_checkpoint(saved)
    assert drawn() == expected


def test_one_process_computes_in_bfloat16_and_a_small_rate_still_moves_every_weight(compose):
    """16-bit weights would keep changes in less than 1 % of them at this rate."""
    rate = ("algorithm.optimizer.lr=1e-6", "algorithm.optimizer.warmup_steps=0")
    run = Run(compose("trainer.sharding.dtype=bfloat16", "budget.steps=1", "algorithm.kl.beta=0.01", *rate))
    before = {name: tensor.clone() for name, tensor in run.parts.policy.state_dict().items()}
    run.fit()
    after = run.module.policy.state_dict()
    assert after.keys() == before.keys()
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert {p.dtype for p in run.module.reference.model.parameters()} == {torch.bfloat16}
    moved = [(after[name] != before[name]).float().mean() for name in before if ".layers." in name]
    assert float(torch.stack(moved).mean()) > 0.9
    row = rows(run.folder.path)[-1]
    assert 1e-7 < row["mismatch/kl"] < 1e-2  # the engine computes in bfloat16 too, in another order


def test_dropout_is_off_in_a_run(compose, monkeypatch):
    training, accumulate = [], StepUpdates.accumulate_gradient

    def watched(self, minibatch, epoch):
        training.append(self.forward.policy.training)
        return accumulate(self, minibatch, epoch)

    monkeypatch.setattr(StepUpdates, "accumulate_gradient", watched)
    Run(compose("budget.steps=1")).fit()
    assert set(training) == {False}
