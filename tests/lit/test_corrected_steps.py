"""Corrections inside a training step: weights of the policy's loss alone."""

from dataclasses import replace

import pytest
import torch
from small_runs import collected_step, scored

from dapo_lit.lit.module import DAPOModule
from dapo_lit.switches.algorithm import objective

SMALL = ("budget.steps=1", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2")


def gradients(module, step, kind, monkeypatch):
    """Of the whole step under one kind of correction, with its tokens."""
    algorithm = module.config.algorithm
    correction = algorithm.correction.model_copy(update={"kind": kind})
    module.objective = objective(
        algorithm.model_copy(update={"correction": correction}), module.config.task.max_response_tokens
    )
    monkeypatch.setattr(DAPOModule, "manual_backward", lambda self, loss: loss.backward())
    tokens, statistics = scored(module, step.tokens)
    updates = module.step_updates(step.step, step.tokens, tokens, statistics)
    module.zero_grad()
    updates.accumulate_gradient(list(range(len(step.tokens.sequences))), epoch=0)
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]), tokens


@pytest.mark.parametrize("loss", ["dapo", "gspo"])
def test_a_token_of_weight_zero_carries_no_loss_and_the_denominator_stays(compose, monkeypatch, loss):
    module, step = collected_step(compose(*SMALL, f"algorithm={loss}"), monkeypatch)
    agreed = scored(module, step.tokens)[0].old_logprobs
    half = step.tokens.completion_of_token % 2 == 0
    step = replace(step, tokens=replace(step.tokens, rollout_logprobs=agreed))
    whole, _ = gradients(module, step, "none", monkeypatch)
    parts = []
    for masked in (half, ~half):  # a ratio of e^3 leaves every band
        apart = replace(step, tokens=replace(step.tokens, rollout_logprobs=torch.where(masked, agreed - 3, agreed)))
        part, tokens = gradients(module, apart, "icepop", monkeypatch)
        assert torch.equal(tokens.corrections, (~masked).float())
        parts.append(part)
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-7)


def test_a_carried_over_token_is_weighed_by_the_weights_that_sampled_it(compose, monkeypatch):
    module, step = collected_step(compose(*SMALL, "algorithm.correction.kind=tis"), monkeypatch)
    agreed = scored(module, step.tokens)[0].old_logprobs
    stale = step.tokens.completion_of_token % 2 == 0
    mu = torch.where(stale, agreed + 0.25, agreed)
    tokens = replace(step.tokens, rollout_logprobs=mu, fresh=~stale)
    found, statistics = scored(module, tokens)
    torch.testing.assert_close(found.old_logprobs, agreed)  # not the engine's, as without a correction
    torch.testing.assert_close(found.corrections, torch.where(stale, 0.778801, 1.0))  # e^-0.25
    assert statistics.sums["mismatch_tokens"] == (~stale).sum()
