"""One number a run for comparisons, its base policy, and how metrics are named and printed (see docs/metrics.md)."""

from ablations.border import is_share
from ablations.metrics import METRICS, own_unit
from ablations.read.runs import Run, Runs, StudyError

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
    "policy/entropy_bonus": "weight of the entropy bonus",
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
    "turns/num_mean": "turns of an episode",
    "turns/observation_tokens_mean": "tokens of the environment",
    "turns/reward_mean": "rewards of turns",
    "turns/ended_by_environment_frac": "episodes that the environment ended",
    "turns/ended_by_turns_frac": "episodes out of turns",
    "turns/ended_by_turn_tokens_frac": "episodes with a turn cut off",
    "turns/ended_by_tokens_frac": "episodes out of tokens",
    "turns/ended_by_observation_tokens_frac": "episodes out of room for the environment",
    "turns/ended_by_failed_frac": "episodes whose environment failed",
}
MEASURES = {
    "length_mean": "response length",
    "truncated_frac": "truncated responses",
    "entropy": "entropy",
}
OUTCOMES = ("eval/", "rollout/", "policy/", "optim/", "task/", "turns/", "own/")
"""Groups of metrics that describe the policy and its training. The others say what a switch itself did (`sampling/`,
`clip/`, `batch/`, `reward/`, `loss/`) or how fast the machine was."""
BY_CONSTRUCTION = ("rollout/reward_shaped", "optim/lr", "optim/bad_updates")
"""Outcomes in name only: a switch, a schedule or a fault sets them."""


def in_words(key: str, final_samples: int | None = None) -> str:
    """A metric's name in words; the key itself where it has none.

    final_samples: answers to each problem in the evaluation that ends a run. It is logged under the key of the
        smaller ones before it, and arms are compared on it.

    >>> in_words("rollout/entropy"), in_words("eval/chain_sum/avg@8"), in_words("eval/chain_sum/entropy")
    ('entropy', 'accuracy on chain_sum (avg@8)', 'entropy on chain_sum')
    >>> in_words("eval/chain_sum/avg@2", 32)
    'held-out accuracy on chain_sum (avg@32 after the last step, logged as avg@2)'
    """
    if not key.startswith("eval/"):
        return METRICS[key].words if key in METRICS else WORDS.get(key, key)
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


def outcome(run: Run, key: str) -> float | None:
    """The number that arms are compared on: the mean of a metric's last points.

    Points are a third of the checkpoints, at most three; a tenth where a metric has more than 30 values. Of evaluations
    with `final_samples` only the one that ends the run counts. None where the metric was not logged after step 0, or
    was NaN or infinite somewhere.
    """
    if key not in run.outcomes:
        run.outcomes[key] = _outcome(run, key)
    return run.outcomes[key]


def _outcome(run: Run, key: str) -> float | None:
    steps, values = run.points(key)
    values = values[steps > 0]
    count = len(values)
    if not count or run.has_nonfinite(key):
        return None
    points = max(1, min(3, count // 3)) if count <= 30 else count // 10
    if key.startswith("eval/") and (run.config.get("evaluation") or {}).get("final_samples"):
        # It has far more samples than those before it, and none of them is of the policy that the run ended with.
        return float(values[-1]) if steps[-1] == run.metrics.index[-1] else None
    return float(values[-points:].mean())


def below_base(run: Run, key: str) -> bool | None:
    """True for a run that ends below its base policy's own evaluation; None where a policy was not evaluated."""
    series, final = run.series(key), outcome(run, key)
    return None if final is None or not key.startswith("eval/") or 0 not in series.index else final < series.loc[0]


def window_mean(run: Run, key: str, steps: tuple[int, int] | None) -> float | None:
    """A metric averaged over rollout steps; over the run's last values where no steps are named; None without any."""
    if steps is None:
        return outcome(run, key)
    values = run.series(key).loc[steps[0] : steps[1]]
    return None if values.empty or run.has_nonfinite(key) else float(values.mean())


def scores(runs: Runs, key: str) -> dict[str, dict[int, float]]:
    """The outcome of every usable run: arm -> seed -> number. Runs without one are absent."""
    table: dict[str, dict[int, float]] = {arm: {} for arm in runs.arms}
    for run in runs:
        reduced = outcome(run, key) if run.usable else None
        if reduced is not None:
            table[run.arm][run.seed] = reduced
    return table


def bases(runs: Runs) -> dict[int, str]:
    """The base policy of each seed: that of its first arm that recorded it."""
    found: dict[int, str] = {}
    for run in sorted(runs, key=lambda run: run.record.get("base_weights") is None):
        found.setdefault(run.seed, run.base)
    return found


def primary_metric(runs: Runs, registered: str | None = None) -> str:
    """The metric that arms are compared on: the registered one, else avg@k of the first benchmark, else the training
    accuracy.
    """
    keys = runs.usable.keys()
    found = [key for key in keys if key.startswith("eval/") and "/avg@" in key]
    candidates = [registered] if registered else [*found, "rollout/accuracy"]
    for key in candidates:
        if any(outcome(run, key) is not None for run in runs.usable):
            return key
    wanted = " or ".join(candidates)
    raise StudyError(f"no finished run logged {wanted} after step 0, so there is nothing to compare arms on")


def amount(key: str, value: float | None, signed: bool = False) -> str:
    """A value of a metric as reports print it, a dash for none; shares in points.

    >>> amount("rollout/accuracy", 0.051, signed=True), amount("rollout/entropy", 0.0512), amount("optim/lr", None)
    ('+5.1', '0.0512', '–')
    """
    if value is None or value != value:
        return "–"
    if is_share(key):
        value = round(value, 3) + 0.0  # no minus before a zero
        return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"
    return f"{value:+.3g}" if signed else f"{value:.3g}"


def with_interval(key: str, mean: float, low: float | None, high: float | None) -> str:
    """A difference as reports print it, with its interval where it has one.

    >>> with_interval("rollout/accuracy", 0.051, 0.01, 0.092), with_interval("rollout/entropy", 0.0512, None, None)
    ('+5.1 [+1.0, +9.2]', '+0.0512')
    """
    text = amount(key, mean, signed=True)
    if low is None or low != low:
        return text
    return f"{text} [{amount(key, low, signed=True)}, {amount(key, high, signed=True)}]"


def unit(key: str) -> str:
    """The unit of `amount`."""
    if is_share(key):
        return "points"
    if (own := own_unit(key)) is not None:
        return own
    return "nats" if "entropy" in key else "tokens" if "length" in key and not key.endswith("length_cv") else ""
