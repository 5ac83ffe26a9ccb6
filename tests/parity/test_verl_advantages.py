"""verl 0.9: advantages with and without a value network."""

import numpy as np
import pytest
import torch
from batches import GROUPS, MAX_RESPONSE_TOKENS, SAMPLES
from comparison import difference, record
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos

from dapo_lit.objective.advantages import (
    discounted_returns,
    gae,
    group_advantages,
    leave_one_out_advantages,
    token_rewards,
    whiten,
)

NUM = GROUPS * SAMPLES
INDEX = np.array([f"prompt {i // SAMPLES}" for i in range(NUM)])


def reward_batches() -> list[Tensor]:
    """[P, G] rewards: 20 of correctness and a length penalty, and one with a single right answer in each group."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(20):
        correct = torch.randint(0, 2, (GROUPS, SAMPLES), generator=generator) * 2.0 - 1
        batches.append(correct - torch.rand(GROUPS, SAMPLES, generator=generator))
    one_right = torch.full((GROUPS, SAMPLES), -1.0)
    one_right[:, 0] = 1.0
    return [*batches, one_right]


REWARDS, BATCHES = reward_batches(), "20 random, one right of 4"
ONE_TOKEN_PENALTY = torch.ones(GROUPS, SAMPLES)
ONE_TOKEN_PENALTY[:, 0] -= 1 / 4096
"""All right, and one of a group a token longer than it may be: the smallest difference that Eq. 13 makes."""


def masks() -> tuple[Tensor, Tensor]:
    """[B] lengths, one of them 1 and one the longest, and the [B, T] response mask in integers, as in verl."""
    lengths = torch.randint(1, MAX_RESPONSE_TOKENS + 1, (NUM,), generator=torch.Generator().manual_seed(1))
    lengths[0], lengths[1] = 1, MAX_RESPONSE_TOKENS
    return lengths, (torch.arange(MAX_RESPONSE_TOKENS) < lengths[:, None]).long()


def at_last_token(rewards: Tensor, lengths: Tensor) -> Tensor:
    """[B, T] with the reward of each completion at its last token."""
    scores = torch.zeros(NUM, MAX_RESPONSE_TOKENS, dtype=rewards.dtype)
    scores[torch.arange(NUM), lengths - 1] = rewards.flatten()
    return scores


def of_outcomes(ours: Tensor, estimator: str, rewards: Tensor, **settings: object) -> float:
    """Largest difference of [P, G] advantages and verl's, over the response tokens."""
    lengths, mask = masks()
    theirs, _ = core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=at_last_token(rewards, lengths), response_mask=mask, index=INDEX, **settings
    )
    chosen = mask.bool()
    return difference(ours.flatten()[:, None].expand_as(theirs)[chosen].to(theirs.dtype), theirs[chosen])


@pytest.mark.parametrize("scale", [True, False])
def test_group_advantages_with_and_without_the_std(scale: bool) -> None:
    differences = [
        of_outcomes(group_advantages(rewards, scale_by_std=scale), "grpo", rewards, norm_adv_by_std_in_grpo=scale)
        for rewards in REWARDS
    ]
    setting = "GRPO" if scale else "Dr. GRPO"
    record("group_advantages", setting, "verl `compute_grpo_outcome_advantage`", BATCHES, differences)


@pytest.mark.parametrize("estimator", ["rloo", "rloo_vectorized"])
def test_leave_one_out(estimator: str) -> None:
    record(
        "leave_one_out_advantages",
        "RLOO",
        f"verl `compute_{estimator}_outcome_advantage`",
        BATCHES,
        [of_outcomes(leave_one_out_advantages(r), estimator, r) for r in REWARDS],
    )


def test_equal_rewards_are_noise_for_verl_where_their_mean_rounds() -> None:
    rewards = torch.empty(GROUPS, SAMPLES)
    exact = [torch.full_like(rewards, value) for value in (0.5, 1.0, -1.0, 0.0)]
    same = [of_outcomes(group_advantages(values), "grpo", values) for values in exact]
    peer = "verl `compute_grpo_outcome_advantage`"
    record("group_advantages", "equal rewards of 0.5, 1, -1, 0", peer, "all equal", same)
    worst, found = 0.0, None
    for size in range(2, 65):
        for value in (0.1, 0.3, 0.7, 1 / 3, -0.6):
            scores = torch.zeros(size, 1)
            scores[:, 0] = value
            theirs, _ = core_algos.compute_grpo_outcome_advantage(
                scores, torch.ones(size, 1), np.array(["one prompt"] * size)
            )
            assert torch.equal(group_advantages(scores.t()), torch.zeros(1, size))
            if theirs.abs().max() > worst:
                worst, found = theirs.abs().max().item(), (size, value)
    assert found is not None
    record("group_advantages", "equal rewards, 2 to 64 samples", peer, "all equal", [worst], differs="V7")


def test_verl_takes_the_reward_of_a_single_sample_for_its_advantage() -> None:
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        torch.tensor([[0.7]]), torch.ones(1, 1), np.array(["one prompt"])
    )
    assert theirs.item() == pytest.approx(0.7)
    assert group_advantages(torch.tensor([[0.7]])).item() == 0.0  # configs ask for two samples or more


def test_generalised_advantages_and_returns() -> None:
    lengths, mask = masks()
    chosen, generator = mask.bool(), torch.Generator().manual_seed(2)
    returns, advantages = [], []
    for gamma, lam in ((1.0, 1.0), (1.0, 0.95), (0.99, 0.95), (0.9, 0.0), (0.0, 0.5)):
        for rewards in (torch.randn(mask.shape, generator=generator), at_last_token(REWARDS[0], lengths)):
            rewards = rewards * mask
            values = torch.randn(mask.shape, generator=generator)
            theirs, their_returns = core_algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
            mine, my_returns = gae(rewards[chosen], values[chosen], lengths, gamma=gamma, lam=lam)
            returns.append(difference(my_returns, their_returns[chosen]))
            whitened = whiten(mine, torch.ones_like(mine, dtype=torch.bool))
            advantages.append(difference(whitened, theirs[chosen]))
    peer = "verl `compute_gae_advantage_return`"
    record("gae", "returns", peer, "10 random, 5 pairs (γ, λ)", returns)
    record("whiten(gae)", "advantages, which verl whitens", peer, "10 random, 5 pairs (γ, λ)", advantages)


def reinforce_plus_plus(rewards: Tensor, gamma: float) -> tuple[float, float]:
    """Differences of the returns and of the whitened advantages."""
    lengths, mask = masks()
    chosen = mask.bool()
    theirs, their_returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        at_last_token(rewards, lengths), mask, config=AlgoConfig(gamma=gamma)
    )
    mine = discounted_returns(token_rewards(rewards.flatten(), None, lengths, beta=0.0), lengths, gamma=gamma)
    whitened = whiten(mine, torch.ones_like(mine, dtype=torch.bool))
    return difference(mine, their_returns[chosen]), difference(whitened, theirs[chosen])


REINFORCE = "verl `compute_reinforce_plus_plus_outcome_advantage`"


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_plus_plus(gamma: float) -> None:
    differences = [value for rewards in REWARDS for value in reinforce_plus_plus(rewards, gamma)]
    record("whiten(discounted_returns)", f"REINFORCE++, γ = {gamma:g}", REINFORCE, BATCHES, differences)


def test_in_fp32_verls_whitening_loses_small_differences() -> None:
    for dtype, differs in ((torch.float32, "V8"), (torch.float64, None)):
        record(
            "whiten(discounted_returns)",
            f"REINFORCE++, theirs in {str(dtype).removeprefix('torch.')}",
            REINFORCE,
            "rewards 1 and 1 - 1 / 4096",
            [reinforce_plus_plus(ONE_TOKEN_PENALTY.to(dtype), 1.0)[1]],
            differs=differs,
        )


def test_reinforce_plus_plus_baseline() -> None:
    lengths, mask = masks()
    chosen = mask.bool()
    differences = []
    for rewards in REWARDS:
        theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
            at_last_token(rewards, lengths), mask, INDEX
        )
        tokens = group_advantages(rewards, scale_by_std=False).flatten()[:, None].expand_as(theirs)[chosen]
        differences.append(difference(whiten(tokens, torch.ones_like(tokens, dtype=torch.bool)), theirs[chosen]))
    record(
        "whiten(group_advantages)", "REINFORCE++-baseline",
        "verl `compute_reinforce_plus_plus_baseline_outcome_advantage`", BATCHES,
        differences,
    )  # fmt: skip


def test_the_kl_penalty_in_the_reward() -> None:
    lengths, mask = masks()
    chosen, generator = mask.bool(), torch.Generator().manual_seed(3)
    old, reference = torch.randn(2, *mask.shape, generator=generator)
    differences = []
    for rewards in REWARDS:
        theirs = core_algos.compute_rewards(at_last_token(rewards, lengths), old, reference, 0.05)
        mine = token_rewards(rewards.flatten(), (old - reference)[chosen], lengths, beta=0.05)
        differences.append(difference(mine, theirs[chosen]))
    record("token_rewards", "β = 0.05, k1", "verl `compute_rewards`", BATCHES, differences)
