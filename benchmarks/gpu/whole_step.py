"""The whole steps of campaign.py: what is trained by which overrides, how much work a step of it is."""

from dapo_lit.forecast.architecture import qwen2_5
from dapo_lit_tools.planning.duration import Shape, Tokens

SIZES = {
    "0.5B": ("budget.steps=3",),
    "1.5B": ("budget.steps=2",),
    "7B": ("budget.steps=2", "policy.dtype=bfloat16", "policy.lora={rank: 32, alpha: 32}"),
}
PROMPTS = {"0.5B": 32, "1.5B": 32, "7B": 16}
"""Fewer than the experiment's 64, so fewer updates: a step of 64 takes half a minute to two minutes."""
MINIBATCH_PROMPTS = 16
PLAIN, FAST = "step", "step_fast"
STEP_PARTS = {PLAIN: "0.5B", FAST: "0.5B", "step_1_5b": "1.5B", "step_7b": "7B"}
"""The first one has neither CUDA graphs in the engine nor compiled layers, the second one both. Later sizes are not
compiled: it is up to a minute of each start, and part d has all three."""
CACHE_GB = {"0.5B": 5, "1.5B": 11, "7B": 16}
"""For 256 sequences of full length."""
WHOLE_STEP = (
    "+experiment=qwen2_5_0_5b_gsm8k", "reward.function=dapo_lit.rewards.coin_flip.reward", "task.template=plain",
    "algorithm.overlong.hard_punishment=false", "algorithm.techniques.dynamic_sampling=false", "evaluation.every=0",
    "evaluation.samples=1", "task.num_heldout=1", f"algorithm.minibatch_prompts={MINIBATCH_PROMPTS}",
)  # fmt: skip
TRAINER_CASES, HEAD_TOKENS, HEAD_VOCABULARY, HEAD_WIDTH = (0, 2, 4), 8192, 151_936, 3584
"""Of part d and of benchmarks/head.py."""
PROMPT_TOKENS, LIMIT_TOKENS = 45, 512
"""A problem of random_policy.py has about so many tokens; a response at most."""
MEAN_TOKENS, LENGTH_CV = 324.0, 0.567
"""Of a response that ends with probability 1 / LIMIT_TOKENS at each token, if not before at the limit."""
LENGTH_SPREAD = 1.35
"""The spread of the log-normal lengths of `plan` that have this mean and coefficient of variation."""


def useful(size: str, work: Tokens) -> float:
    """Operations of a step's updates, without recomputation; under adapters a matrix has no gradient of its own."""
    cost = Shape.of(qwen2_5(size)).training(work, recomputes=0.0)
    adapters = any("policy.lora" in override for override in SIZES[size])
    return cost.products * (2 / 3 if adapters else 1.0) + cost.attention


def work_of(size: str, mean: float = MEAN_TOKENS, cv: float = LENGTH_CV, *, compiled: bool = True) -> Tokens:
    """What goes through the policy in a step whose responses have this mean length and coefficient of variation."""
    sequences = PROMPTS[size] * 16
    squares = PROMPT_TOKENS**2 + 2 * PROMPT_TOKENS * mean + mean**2 * (1 + cv**2)
    return Tokens(sequences * (PROMPT_TOKENS + mean), sequences * squares, sequences * mean, compiled)
