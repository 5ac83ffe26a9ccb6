"""The random reward: fair coins, decided by problem and sample and by nothing that the policy wrote."""

from dapo_lit.rewards.coin_flip import reward
from dapo_lit.rewards.functions import RewardProblem

QUESTIONS = [
    RewardProblem(f"p{problem}", "1+2=", "3", sample=f"{step}/0/{index}")
    for problem in range(40)
    for step in range(5)
    for index in range(10)
]
ANSWERS = ["#3"] * len(QUESTIONS)


def test_half_of_the_coins_are_heads_in_every_problem_step_and_index_whatever_the_text():
    coins = reward(QUESTIONS, ANSWERS)
    assert abs(sum(coins) / len(coins) - 0.5) < 4 * 0.5 / len(coins) ** 0.5
    for part in (slice(0, 50), slice(0, None, 10), slice(1, None, 10)):
        assert 0.25 < sum(coins[part]) / len(coins[part]) < 0.75
    assert coins == reward(QUESTIONS, ["wrong"] * len(QUESTIONS)) == reward(QUESTIONS, ANSWERS)
