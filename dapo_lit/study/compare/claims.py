"""Eight of the paper's claims that an effect can decide; docs/claims.md has the verdicts and the other claims."""

ENTROPY, ALIKE = "rollout/entropy", "rollout/unique_frac"
LENGTH, REPEATS, TRUNCATED = "rollout/length_mean", "rollout/repetition_frac", "rollout/truncated_frac"
CLAIMS = {
    "C1": ("naive GRPO: entropy collapses (halves), answers become alike", f"{ENTROPY}, {ALIKE}", "naive_grpo"),
    "C3": ("clip-higher raises entropy and accuracy", ENTROPY + ", {metric}", "clip-higher on / off"),
    "C7": (
        "dynamic sampling: the same accuracy in fewer steps, in at most 1.25 times the time",
        "budget to reach the accuracy of the arm without it",
        "dynamic sampling on / off",
    ),
    "C8": (
        "sample-level loss: entropy, length and repetition grow",
        f"policy/entropy, {LENGTH}, {REPEATS}",
        "token-level loss off / on",
    ),
    "C9": ("token-level loss: a gain (a small one in the paper)", "{metric}", "token-level loss on / off"),
    "C10": ("overlong filtering improves", "{metric}", "filtering on / off"),
    "C11": (
        "soft punishment improves, with fewer truncated answers",
        "{metric}, " + TRUNCATED,
        "soft punishment on / off",
    ),
    "C12": ("the KL term is not needed (at most 2 points worse without)", "{metric}", "kl_sweep"),
}
"""Number in the list of the paper's claims -> what it says, the metrics that decide it, the arms."""
