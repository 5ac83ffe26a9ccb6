"""`rollout/*`, `batch/*`, `reward/*`, `task/*`, `sampling/*`: pure functions of groups. Formulas: docs/metrics.md."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

import numpy as np

from dapo_lit.engines.protocol import TokenIds
from dapo_lit.rollout.episodes import ENDS, Decode, num_turns, turn_texts
from dapo_lit.rollout.records import Completion, Group, OpenGroup
from dapo_lit.rollout.step_collection import StepCollection

NGRAM = 4
"""Tokens of an n-gram in repetition_frac."""

# The paper shows two passages of reflection (section 4.4) and gives no rate. Words are only a proxy for checking and
# backtracking: a policy can verify its work without them, or use them without verifying anything.
_PATTERNS = (
    r"\b(?:however|but|no|hmm|oh|so),? wait\b|\bwait,|\bwait a (?:moment|minute|second)\b",
    r"\b(?:rethink|reconsider(?:ed|ing)?|re-?examin(?:e|ed|ing)|re-?evaluat(?:e|ed|ing))\b",
    r"\b(?:double|re)-?check\b|\b(?:let's|let us|let me|i will|i'll|we should) (?:verify|check)\b",
    r"\b(?:i|we) (?:have )?(?:made|must have made) an? (?:mistake|error)\b"
    r"|\b(?:that|this) (?:is|was|can't be|cannot be) (?:wrong|incorrect)\b",
    r"\b(?:let's|let us|let me) (?:go back|start over|try again)\b|\b(?:another|a different) approach\b",
)
WORDS = re.compile("|".join(_PATTERNS).replace(" ", r"\s+"), re.IGNORECASE)
"""In any case, with any white space between two words."""
MARK = re.compile(r"\?")
"""In the generated tasks with a vocabulary of characters a question mark starts a check:
`7+4=11;11+9=21;?7+4=11;11+9=20;#20`."""


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Over all completions with a verdict of a step, before any filtering; null where there is nothing to average."""
    # Missing verdicts count in the bounds and the error rates and nowhere else.
    ended = [c for g in groups for c in [*g.completions, *g.missing]]
    groups = [g for g in groups if g.completions]
    completions = [c for g in groups for c in g.completions]
    sizes = [len(g.completions) for g in groups]
    low, high = accuracy_bounds(sum(c.correct for c in completions), len(completions), len(ended) - len(completions))
    repeated = [(repetition(c.sample.response_ids), c.truncated) for c in completions]
    entropy, prob_mean = _entropy_and_prob(completions)
    return {
        **{f"rollout/{key}": value for key, value in _outcome(completions).items()},
        "rollout/reward_shaped": _mean(c.reward_shaped for c in completions),
        # A maximum and not a percentile: it says whether the limit of response tokens is reached.
        "rollout/length_max": max((c.num_tokens for c in completions), default=None),
        "rollout/length_cv": _variation([c.num_tokens for c in completions]),
        "rollout/length_correct": _mean(c.num_tokens for c in completions if c.correct),
        "rollout/length_wrong": _mean(c.num_tokens for c in completions if not c.correct),
        "rollout/groups_all_correct_frac": _mean(g.num_correct == n for g, n in zip(groups, sizes, strict=True)),
        "rollout/groups_all_wrong_frac": _mean(g.num_correct == 0 for g in groups),
        "rollout/groups_mixed_frac": _mean(g.mixed for g in groups),
        "rollout/entropy": entropy,
        "rollout/prob_mean": prob_mean,
        # By bytes of the token ids: two tokenisations of one text are two samples.
        "rollout/unique_frac": _mean(
            len({c.sample.response_ids.tobytes() for c in g.completions}) / n
            for g, n in zip(groups, sizes, strict=True)
        ),
        "rollout/repetition_frac": _mean(share for share, _ in repeated),
        "rollout/repetition_frac_truncated": _mean(share for share, truncated in repeated if truncated),
        "rollout/repetition_frac_finished": _mean(share for share, truncated in repeated if not truncated),
        "reward/correctness": _mean(c.reward for c in completions),
        "reward/length_penalty": _mean(c.length_penalty for c in completions),
        "reward/verifier_timeout_frac": _mean(c.score.timed_out for c in ended),
        "reward/verifier_error_frac": _mean(c.score.error is not None for c in ended),
        "rollout/accuracy_low": low,
        "rollout/accuracy_high": high,
    }


def accuracy_bounds(num_correct: int, num_verified: int, num_missing: int) -> tuple[float | None, float | None]:
    """The accuracy if all missing verdicts were wrong, and if all were right.

    Which verdicts are missing may depend on the answer (long ones are late), so that no estimate between the bounds is
    better founded than another. None without any completion.

    >>> accuracy_bounds(num_correct=3, num_verified=8, num_missing=2)
    (0.3, 0.5)
    """
    total = num_verified + num_missing
    return (num_correct / total, (num_correct + num_missing) / total) if total else (None, None)


def batch_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """The same over the completions trained on, what their groups teach, and what wrong answers are taught.

    A group whose answers are all wrong has advantages if a length penalty makes its rewards differ (DAPO Eq. 13), and
    then they reinforce its short answers. Advantages here are those of Eq. 9, whatever the run's estimator.
    """
    completions = [c for g in groups for c in g.completions]
    # Always Eq. 9, whatever estimator trains: a definition never depends on a switch, or arms could not be compared.
    advantages = [a for g in groups for a in _relative([c.reward_shaped for c in g.completions])]
    in_wrong = [g.num_correct == 0 for g in groups for _ in g.completions]
    # Absolute sizes: advantages of a group sum to 0.
    size = sum(map(abs, advantages))
    size_in_wrong = sum(abs(a) for a, wrong in zip(advantages, in_wrong, strict=True) if wrong)
    reinforced = [c for c, a in zip(completions, advantages, strict=True) if a > 0 and not c.correct]
    return {f"batch/{key}": value for key, value in _outcome(completions).items()} | {
        "sampling/groups_equal_rewards_frac": _mean(g.equal_rewards for g in groups),
        "sampling/groups_wrong_with_advantages_frac": _mean(g.num_correct == 0 and not g.equal_rewards for g in groups),
        "sampling/advantages_in_wrong_groups_frac": size_in_wrong / size if size else None,
        "sampling/wrong_reinforced_frac": len(reinforced) / len(completions) if completions else None,
        "sampling/wrong_reinforced_length": _mean(c.num_tokens for c in reinforced),
    }


def _relative(rewards: Sequence[float]) -> list[float]:
    """DAPO Eq. 9 without epsilon: rewards of a group less their mean, in standard deviations; 0 if all are equal.

    >>> _relative([1.0, 0.0, -1.0]), _relative([0.5, 0.5])
    ([1.0, 0.0, -1.0], [0.0, 0.0])
    """
    if math.isclose(min(rewards), max(rewards)):
        return [0.0] * len(rewards)
    # ddof=1 as in torch.std, which the trainers of GRPO and DAPO use.
    mean, deviation = float(np.mean(rewards)), float(np.std(rewards, ddof=1))
    return [(reward - mean) / deviation for reward in rewards]


def turn_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """`turns/*` of episodes with an environment, over all completions of a step, those without a verdict included."""
    samples = [c.sample for g in groups for c in [*g.completions, *g.missing]]
    return {
        "turns/num_mean": _mean(num_turns(s) for s in samples),
        "turns/observation_tokens_mean": _mean(len(s.observations) for s in samples),
        "turns/reward_mean": _mean(sum(s.turn_rewards) for s in samples),
        **{f"turns/ended_by_{end}_frac": _mean(s.ended_by == end for s in samples) for end in ENDS},
    }


def task_metrics(groups: Sequence[Group], shares: Mapping[str, Callable[[str], bool]]) -> dict[str, float | None]:
    """The metrics that a task adds: the share of responses, of whole episodes, for which a predicate holds."""
    return {key: _mean(holds(c.text) for g in groups for c in g.completions) for key, holds in shares.items()}


def reflection(groups: Sequence[Group], pattern: re.Pattern[str], decode: Decode) -> float | None:
    """Share of responses in which the policy reflects; what an environment said is not the policy's."""
    texts = ("\n".join(turn_texts(c.sample, decode)) or c.text for g in groups for c in g.completions)
    return _mean(reflects(text, pattern) for text in texts)


def reflects(text: str, pattern: re.Pattern[str] = WORDS) -> bool:
    """True if the pattern occurs in a response.

    >>> reflects("However,\\nwait a moment, let's rethink"), reflects("7+4=11;?7+4=11;#11", MARK)
    (True, True)
    """
    # Typographic apostrophes.
    return pattern.search(text.replace("\u2019", "'")) is not None


def repetition(ids: TokenIds) -> float:
    """Share of a response's n-grams that occurred in it before.

    >>> round(repetition(np.array([1, 2, 3, 4, 1, 2, 3, 4])), 3)
    0.2
    """
    total = len(ids) - NGRAM + 1
    if total <= 0:
        return 0.0
    # Each distinct id is labelled by one of its positions. Four labels of 16 bits make one 64-bit key, and sorting keys
    # is many times faster than a set of tuples.
    last_position = np.empty(int(ids.max()) + 1, np.int64)
    last_position[ids] = np.arange(len(ids))
    labels = last_position[ids]
    if len(ids) <= 1 << 16:
        keys = labels[:-3].astype(np.uint64)
        for offset in range(1, NGRAM):
            keys = (keys << np.uint64(16)) | labels[offset : offset + total].astype(np.uint64)
    else:
        pairs = np.unique(labels[:-1] * len(ids) + labels[1:], return_inverse=True)[1]
        keys = (pairs[:-2] * len(ids) + pairs[2:]).astype(np.uint64)
    keys.sort()
    num_distinct = 1 + int(np.count_nonzero(keys[1:] != keys[:-1]))
    return 1 - num_distinct / total


def sampling_metrics(
    step: StepCollection, accepted: Sequence[Group], carried_out: Sequence[OpenGroup], policy_version: int
) -> dict[str, float | None]:
    """`sampling/*`: what became of the groups of a step, and what they cost.

    step: at its end, with nothing under way.
    accepted: groups trained on.
    carried_out: groups kept for the next step.
    policy_version: of the weights that train on the step.
    """
    rules = step.admission.rules
    # By identity: two submissions of a problem may be equal in every field.
    used = {id(group) for group in accepted} | {id(group.group) for group in carried_out}
    unused = [group for group in step.groups if id(group.group) not in used]
    filtered = [g for g in unused if rules.dynamic_sampling and g.finished and not g.group.passes(rules)]
    filtered_tokens = sum(g.num_tokens for g in filtered)
    surplus_tokens = sum(g.num_tokens for g in [*unused, *step.expired]) - filtered_tokens
    ended = [g.group for g in step.groups if g.finished and not g.ended_earlier]
    submitted = sum(not g.carried for g in step.groups)
    # A step that only finished carried groups may have sampled nothing.
    total = max(step.tokens_generated, 1)
    carried_in = {id(g.group) for g in step.groups if g.carried}
    metrics: dict[str, float | None] = {
        "sampling/rounds": submitted / rules.num_prompts,
        "sampling/groups_generated": submitted,
        "sampling/groups_kept": sum(g.passes(rules) or not rules.dynamic_sampling for g in ended),
        "sampling/groups_surplus": len(unused) - len(filtered),
        "sampling/groups_carried_in": sum(id(g) in carried_in for g in accepted),
        "sampling/groups_carried_out": len(carried_out),
        "sampling/groups_expired": len(step.expired),
        "sampling/tokens_filtered_frac": filtered_tokens / total,
        "sampling/tokens_surplus_frac": surplus_tokens / total,
        "sampling/tokens_wasted_frac": (filtered_tokens + surplus_tokens) / total,
    }
    return metrics | staleness(accepted, policy_version) | _lengths(accepted, ended)


def staleness(accepted: Sequence[Group], policy_version: int) -> dict[str, float | None]:
    """Updates of the weights between the sampling of a token and its training."""
    runs = [(policy_version - v, n) for g in accepted for c in g.completions for v, n in c.sample.versions]
    total = sum(tokens for _, tokens in runs)
    return {
        "sampling/staleness_mean": sum(age * tokens for age, tokens in runs) / total if total else None,
        "sampling/staleness_max": max((age for age, _ in runs), default=None),
        "sampling/stale_tokens_frac": sum(tokens for age, tokens in runs if age > 0) / total if total else None,
    }


def _lengths(accepted: Sequence[Group], ended: Sequence[Group]) -> dict[str, float | None]:
    """The length-bias audit: quantiles over completions, and the distance between the two distributions."""
    metrics: dict[str, float | None] = {}
    # Sorted once: percentiles and the distance both need it.
    ours, all_of_them = (np.sort([c.num_tokens for g in groups for c in g.completions]) for groups in (accepted, ended))
    for name, lengths in (("accepted", ours), ("generated", all_of_them)):
        for percent in (10, 50, 90):
            value = float(np.percentile(lengths, percent)) if len(lengths) else None
            metrics[f"sampling/length_{name}_p{percent}"] = value
    # Near 0 without a filter; a large one says that filtering chose by length.
    metrics["sampling/length_ks"] = ks_distance(ours, all_of_them) if len(ours) and len(all_of_them) else None
    return metrics


def ks_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance: the largest difference between two empirical distribution functions.

    first, second: sorted, neither empty.

    >>> ks_distance(np.array([1, 2]), np.array([1, 2, 3, 4]))
    0.5
    """
    values = np.concatenate([first, second])
    shares = [np.searchsorted(sample, values, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def _outcome(completions: Sequence[Completion]) -> dict[str, float | None]:
    return {
        "accuracy": _mean(c.correct for c in completions),
        "reward": _mean(c.reward for c in completions),
        "length_mean": _mean(c.num_tokens for c in completions),
        "truncated_frac": _mean(c.truncated for c in completions),
    }


def _entropy_and_prob(completions: Sequence[Completion]) -> tuple[float | None, float | None]:
    """Minus the mean log-prob of the sampled tokens, and their mean probability."""
    total = sum(c.num_tokens for c in completions)
    if not total:
        return None, None
    # Extended precision, so that neither sum depends on how the tokens are split into completions.
    logprob = prob = np.longdouble(0)
    for completion in completions:
        logprobs = completion.sample.rollout_logprobs
        logprob += np.add.reduce(logprobs, dtype=np.longdouble)
        # Complex numbers go through the C library's exp; np.exp of reals differs between processors in the last bit.
        prob += np.add.reduce(np.exp(logprobs.astype(np.complex128)).real, dtype=np.longdouble)
    return -float(logprob) / total, float(prob) / total


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _variation(values: Sequence[float]) -> float | None:
    """Coefficient of variation: standard deviation (of the population) over the mean."""
    return pstdev(values) / fmean(values) if values else None
