"""The whole steps of campaign.py: what is trained by which overrides, how much work a step of it is."""

from dapo_lit.forecast.architecture import qwen2_5
from dapo_lit_tools.planning.duration import Shape, Tokens

SIZES = {
    "0.5B": ("budget.steps=2", "trainer.compile=true"),
    "1.5B": ("budget.steps=2", "trainer.compile=true"),
    "7B": ("budget.steps=2", "trainer.compile=true", "policy.dtype=bfloat16", "policy.lora={rank: 32, alpha: 32}"),
}
PROMPTS = {"0.5B": 32, "1.5B": 32, "7B": 16}
"""Fewer than the experiment's 64, so fewer updates: a step of 64 takes half a minute to two minutes."""
MINIBATCH_PROMPTS = 16
STEP_PARTS = {"step": "0.5B", "step_1_5b": "1.5B", "step_7b": "7B"}
CACHE_GB = {"0.5B": 5, "1.5B": 11, "7B": 16}
"""For 256 sequences of full length."""
WHOLE_STEP = (
    "+experiment=qwen2_5_0_5b_gsm8k", "reward.function=dapo_lit.rewards.coin_flip.reward", "task.template=plain",
    "algorithm.overlong.hard_punishment=false", "algorithm.techniques.dynamic_sampling=false", "evaluation.every=0",
    "evaluation.samples=1", "task.num_heldout=1", f"algorithm.minibatch_prompts={MINIBATCH_PROMPTS}",
)  # fmt: skip
TRAINER_CASES, HEAD_TOKENS, HEAD_VOCABULARY, HEAD_WIDTH = (0, 2, 4), 8192, 151_936, 3584
"""Of part d and of benchmarks/head.py."""
PROMPT_TOKENS = 45
"""About as many does a problem of random_policy.py have."""


def useful(size: str) -> float:
    """Operations of a step's updates, without recomputation; under adapters a matrix has no gradient of its own."""
    cost = Shape.of(qwen2_5(size)).training(work_of(size), recomputes=0.0)
    adapters = any("policy.lora" in override for override in SIZES[size])
    return cost.products * (2 / 3 if adapters else 1.0) + cost.attention


def work_of(size: str, compiled: bool = True) -> Tokens:
    """What goes through the policy in a step: every response runs to its limit."""
    sequences, length = PROMPTS[size] * 16, PROMPT_TOKENS + 512
    return Tokens(sequences * length, sequences * length**2, sequences * 512, compiled)
