"""All switches off is GRPO: against a straightforward implementation with Python floats (DAPO Eq. 4 to 6)."""

import math
import random
import statistics

import pytest
import torch
from plain_losses import losses_of

from dapo_lit.objective.advantages import group_advantages
from dapo_lit.objective.losses import clipped_policy_loss, completion_weights

CLIP = 0.2

Completion = tuple[float, list[float], list[float]]
"""Reward, log-probs, old log-probs."""


def grpo_loss(groups: list[list[Completion]]) -> float:
    """Minus the objective of DAPO Eq. 5 without its KL term, averaged over the prompts."""
    objective = 0.0
    for group in groups:
        rewards = [reward for reward, _, _ in group]
        mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
        for reward, logprobs, old_logprobs in group:
            advantage = (reward - mean) / (std + 1e-6)
            tokens = 0.0
            for logprob, old_logprob in zip(logprobs, old_logprobs, strict=True):
                ratio = math.exp(logprob - old_logprob)
                tokens += min(ratio * advantage, min(max(ratio, 1 - CLIP), 1 + CLIP) * advantage)
            objective += tokens / len(logprobs) / len(group)
    return -objective / len(groups)


def random_groups(rng: random.Random, num_prompts: int, samples_per_prompt: int) -> list[list[Completion]]:
    groups: list[list[Completion]] = []
    for prompt in range(num_prompts):
        group: list[Completion] = []
        for sample in range(samples_per_prompt):
            old_logprobs = [rng.uniform(-3, -0.1) for _ in range(rng.randint(1, 12))]
            logprobs = [x + rng.gauss(0, 0.4) for x in old_logprobs]
            # The last prompt is all wrong, as naive GRPO keeps it: advantage 0, but it counts in the mean.
            right = prompt < num_prompts - 1 and (sample == 0 or rng.random() < 0.4)
            group.append((1.0 if right else -1.0, logprobs, old_logprobs))
        groups.append(group)
    return groups


@pytest.mark.parametrize("seed", range(5))
def test_with_every_switch_off_loss_and_gradient_are_those_of_grpo(seed: int) -> None:
    groups = random_groups(random.Random(seed), num_prompts=4, samples_per_prompt=5)
    completions = [completion for group in groups for completion in group]
    lengths = torch.tensor([len(logprobs) for _, logprobs, _ in completions])
    rewards = torch.tensor([[reward for reward, _, _ in group] for group in groups], dtype=torch.float64)
    weight = completion_weights(
        lengths, torch.arange(4).repeat_interleave(5), aggregation="sample", max_response_tokens=12
    )
    logprobs = torch.tensor([x for _, values, _ in completions for x in values], dtype=torch.float64).requires_grad_()
    token_loss = losses_of(
        clipped_policy_loss,
        logprobs,
        torch.tensor([x for _, _, values in completions for x in values], dtype=torch.float64),
        group_advantages(rewards).flatten().repeat_interleave(lengths),
        clip_low=CLIP,
        clip_high=CLIP,
    )
    loss = (token_loss * weight.repeat_interleave(lengths)).sum()
    assert loss.item() == pytest.approx(grpo_loss(groups), abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, logprobs)

    step, position = 1e-6, 0
    for _, values, _ in completions:
        for t in range(0, len(values), 3):  # every third token by central differences of the reference
            original = values[t]
            values[t] = original + step
            above = grpo_loss(groups)
            values[t] = original - step
            below = grpo_loss(groups)
            values[t] = original
            assert gradient[position + t].item() == pytest.approx((above - below) / (2 * step), abs=1e-8)
        position += len(values)
