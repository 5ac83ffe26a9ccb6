"""What an environment gives for single turns, from the samples to the advantages of their tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dapo_lit.config import Config
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Observations, Sample, SampleKey, token_ids
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import TokenBatch, token_batch
from dapo_lit.step.loss import TokenData
from dapo_lit.switches.algorithm import credit, loss_mask, reward_shaping

A = "algorithm."
EPISODES = (((2, 3), True), ((4,), False), ((1, 1, 2), False), ((3, 1), True))
"""Of a group: the tokens of each turn, and the verdict."""


def group(config: Config, rewards: list[tuple[float, ...]], outcomes: list[float]) -> Group:
    """The episodes with these rewards of their turns and of their ends, shaped."""
    found = Group(1, 0, Problem("p", "1 + 2 =", "3"), 0, token_ids((1, 2)))
    for index, ((turns, right), given, outcome) in enumerate(zip(EPISODES, rewards, outcomes, strict=True)):
        places, length = np.cumsum(turns)[:-1], sum(turns)
        sample = Sample(
            SampleKey(1, "p", 0, index), token_ids(range(3, 3 + length)), np.full(length, -0.5, np.float32),
            finished=True, policy_version=0, observations=Observations(np.full(len(places), 9), places),
            ended_by="environment", turn_rewards=given,
        )  # fmt: skip
        found.completions.append(Completion(sample, "3", Score(right, outcome), outcome))
    reward_shaping(config)(found.completions)
    return found


def advantages(config: Config, groups: list[Group]) -> tuple[Tensor, TokenBatch]:
    batch = token_batch(groups, loss_mask(config.algorithm)(groups), policy_version=0)
    lengths = batch.response_lengths[batch.completion_of_token]
    logprobs = batch.rollout_logprobs
    tokens = TokenData(batch.completion_of_token, lengths, batch.loss_mask, logprobs, batch.fresh, logprobs)
    if config.algorithm.critic is not None:
        tokens = replace(tokens, values=torch.linspace(-1, 1, len(logprobs)))
    earned = credit(config.algorithm)(batch, tokens).advantages
    assert earned is not None
    return earned, batch


RETURNS = (A + "advantage.estimator=returns",)
PPO = ("algorithm=ppo", A + "kl.beta=0", A + "advantage.lam=0.5")


@pytest.mark.parametrize("settings", [(), (A + "advantage.estimator=leave_one_out",), RETURNS, PPO])
def test_a_reward_of_the_last_turn_alone_is_the_reward_at_the_end_to_the_bit(compose, settings):
    """With the length penalty, and 0.1 and -0.7, which no float has."""
    config = compose(*settings, A + "overlong.cache_tokens=4", "task.max_response_tokens=6")
    outcomes = [0.1 if right else -0.7 for _, right in EPISODES]
    last = [(*[0.0] * (len(turns) - 1), end) for (turns, _), end in zip(EPISODES, outcomes, strict=True)]
    at_the_end, _ = advantages(config, [group(config, [()] * 4, outcomes)])
    of_the_turn, batch = advantages(config, [group(config, last, [0.0] * 4)])
    assert batch.turn_rewards is not None
    assert torch.equal(at_the_end, of_the_turn)
    assert at_the_end.any()


def test_a_turn_gets_its_own_reward_and_all_later_ones(compose):
    """Returns with a discount of 1. First episode: turns of two and three tokens with 0.5 and -0.25, outcome 1."""
    config = compose(*RETURNS, "algorithm.techniques.soft_overlong_punishment=false")
    earned, batch = advantages(
        config, [group(config, [(0.5, -0.25), (0.25,), (1.0, 0.0, -2.0), (0.0,)], [1.0, -1.0, -1.0, 1.0])]
    )
    assert earned.tolist() == [1.25, 1.25, 0.75, 0.75, 0.75, *[-0.75] * 4, -2.0, -3.0, -3.0, -3.0, *[1.0] * 4]
    assert batch.rewards.tolist() == [1.25, -0.75, -2.0, 1.0]


def test_an_estimator_of_groups_compares_the_sums_of_whole_episodes(compose):
    config = compose(A + "advantage.scale_by_std=false", "algorithm.techniques.soft_overlong_punishment=false")
    turned, _ = advantages(config, [group(config, [(0.5, -0.25), (0.25,), (1.0, 0.0, -2.0), (0.0,)], [1, -1, -1, 1])])
    # Sums 1.25, -0.75, -2, 1, whose mean is -0.125.
    assert turned.tolist() == [1.375] * 5 + [-0.625] * 4 + [-1.875] * 4 + [1.125] * 4


def test_under_the_hard_punishment_a_truncated_episode_keeps_what_its_turns_had(compose):
    config = compose("algorithm=naive_grpo")
    found = group(config, [(0.5, 0.0)] + [()] * 3, [1.0, -1.0, -1.0, 1.0])
    found.completions[0].sample = replace(found.completions[0].sample, finished=False)
    reward_shaping(config)(found.completions)
    assert [c.reward_shaped for c in found.completions] == [-0.5, -1, -1, 1]
    assert [c.reward for c in found.completions] == [1, -1, -1, 1]
