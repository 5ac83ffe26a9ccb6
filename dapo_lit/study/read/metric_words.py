"""Metrics in words, as figures and tables name them; docs/metrics.md has their formulas."""

WORDS = {
    "rollout/accuracy": "training accuracy",
    "rollout/accuracy_low": "training accuracy, missing verdicts as wrong",
    "rollout/accuracy_high": "training accuracy, missing verdicts as right",
    "rollout/reward": "reward",
    "rollout/reward_shaped": "shaped reward",
    "rollout/length_mean": "response length",
    "rollout/length_max": "longest response",
    "rollout/length_cv": "spread of lengths (sd / mean)",
    "rollout/length_correct": "length of correct responses",
    "rollout/length_wrong": "length of wrong responses",
    "rollout/truncated_frac": "truncated responses",
    "rollout/groups_all_correct_frac": "all-correct groups",
    "rollout/groups_all_wrong_frac": "all-wrong groups",
    "rollout/groups_mixed_frac": "mixed groups",
    "rollout/entropy": "entropy",
    "rollout/prob_mean": "probability of sampled tokens",
    "rollout/unique_frac": "distinct responses in a group",
    "rollout/reflection_frac": "responses that reflect",
    "rollout/repetition_frac": "repeated 4-grams",
    "rollout/repetition_frac_truncated": "repeated 4-grams, truncated responses",
    "rollout/repetition_frac_finished": "repeated 4-grams, finished responses",
    "policy/entropy": "entropy on the batch",
    "policy/entropy_seq_mean": "entropy on the batch, by response",
    "policy/prob_mean": "probability of tokens, batch",
    "policy/kl_old": "KL from the old policy",
    "policy/kl_ref": "KL from the reference",
    "policy/ratio_max": "largest importance ratio",
    "batch/accuracy": "accuracy of the batch",
    "batch/reward": "reward of the batch",
    "batch/length_mean": "response length, batch",
    "batch/truncated_frac": "truncated responses, batch",
    "clip/high_prob_mean": "probability of up-clipped tokens",
    "clip/high_prob_max": "largest of them",
    "optim/grad_norm": "gradient norm",
    "optim/grad_noise": "gradient noise",
    "task/steps_frac": "responses with written steps",
}
MEASURES = {
    "length_mean": "response length",
    "truncated_frac": "truncated responses",
    "entropy": "entropy",
}
OUTCOMES = ("eval/", "rollout/", "policy/", "optim/", "task/")
"""Groups of metrics that describe the policy and its training. The others say what a switch itself did (`sampling/`,
`clip/`, `batch/`, `reward/`, `loss/`) or how fast the machine was."""
BY_CONSTRUCTION = ("rollout/reward_shaped", "optim/lr", "optim/bad_updates")
"""Outcomes in name only: a switch, a schedule or a fault sets them."""


def in_words(key: str, final_samples: int | None = None) -> str:
    """A metric's name in words; the key itself where it has none.

    Args:
        final_samples: answers to each problem in the evaluation that ends a run. It is logged under the key of the
            smaller ones before it, and arms are compared on it.

    >>> in_words("rollout/entropy"), in_words("eval/chain_sum/avg@8"), in_words("eval/chain_sum/entropy")
    ('entropy', 'accuracy on chain_sum (avg@8)', 'entropy on chain_sum')
    >>> in_words("eval/chain_sum/avg@2", 32)
    'held-out accuracy on chain_sum (avg@32 after the last step, logged as avg@2)'
    """
    if not key.startswith("eval/"):
        return WORDS.get(key, key)
    benchmark, _, measure = key.removeprefix("eval/").rpartition("/")
    if final_samples and measure.startswith("avg@"):
        last = f"avg@{final_samples}"
        logged = "" if measure == last else f", logged as {measure}"
        return f"held-out accuracy on {benchmark} ({last} after the last step{logged})"
    return (
        f"accuracy on {benchmark} ({measure})" if "@" in measure else f"{MEASURES.get(measure, measure)} on {benchmark}"
    )


def is_outcome(key: str) -> bool:
    """True for a metric of the policy or its training, rather than of a switch itself.

    >>> is_outcome("rollout/entropy"), is_outcome("sampling/rounds")
    (True, False)
    """
    return key.startswith(OUTCOMES) and key not in BY_CONSTRUCTION
