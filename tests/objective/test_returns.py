"""Token rewards, returns and GAE: by hand, against the sums of the paper, and at the two ends of lambda."""

import random

import pytest
import torch
from flat import split, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_lit.objective.advantages import discounted_returns, gae, token_rewards


def test_the_outcome_falls_on_the_last_token_and_the_kl_on_each() -> None:
    rewards = token_rewards(tensor(1, -1), tensor(0.5, -0.25, 1, 2), torch.tensor([3, 1]), beta=0.1)
    torch.testing.assert_close(rewards, tensor(-0.05, 0.025, 0.9, -1.2))
    torch.testing.assert_close(token_rewards(tensor(1, -1), None, torch.tensor([2, 1]), beta=0.1), tensor(0, 1, -1))


def test_returns_by_hand() -> None:
    rewards = tensor(1, 2, 4, 3, 1)
    torch.testing.assert_close(discounted_returns(rewards, torch.tensor([3, 2]), gamma=0.5), tensor(3, 4, 4, 3.5, 1))
    torch.testing.assert_close(discounted_returns(rewards, torch.tensor([3, 2]), gamma=1.0), tensor(7, 6, 4, 4, 1))


def slow_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Eq. 16 as the sum it is, for one episode."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_the_sum_over_each_episode(lengths: list[int], gamma: float, lam: float, seed: int) -> None:
    rng = random.Random(seed)
    rewards, values = (tensor(*(rng.gauss(0, 1) for _ in range(sum(lengths)))) for _ in range(2))
    advantages, returns = gae(rewards, values, torch.tensor(lengths), gamma=gamma, lam=lam)
    for a, r, v in zip(split(advantages, lengths), split(rewards, lengths), split(values, lengths), strict=True):
        assert a == pytest.approx(slow_gae(r, v, gamma, lam), abs=1e-9)
    torch.testing.assert_close(returns, advantages + values)
