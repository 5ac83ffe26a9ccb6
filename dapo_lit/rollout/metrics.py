"""`rollout/*`, `batch/*`, `reward/*` and `task/*`: pure functions of finished groups. Formulas: docs/metrics.md."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, pstdev

from dapo_lit.rollout.records import Completion, Group

NGRAM = 4
"""Tokens of an n-gram in repetition_frac."""


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Over all completions generated in a step, before any filtering; null where there is nothing to average."""
    completions = [c for g in groups for c in g.completions]
    logprobs = [p for c in completions for p in c.sample.rollout_logprobs]
    sizes = [len(g.completions) for g in groups]
    return {
        **{f"rollout/{key}": value for key, value in _outcome(completions).items()},
        "rollout/reward_shaped": _mean(c.reward_shaped for c in completions),
        "rollout/length_max": max((c.num_tokens for c in completions), default=None),
        "rollout/length_cv": _variation([c.num_tokens for c in completions]),
        "rollout/length_correct": _mean(c.num_tokens for c in completions if c.correct),
        "rollout/length_wrong": _mean(c.num_tokens for c in completions if not c.correct),
        "rollout/groups_all_correct_frac": _mean(g.num_correct == n for g, n in zip(groups, sizes, strict=True)),
        "rollout/groups_all_wrong_frac": _mean(g.num_correct == 0 for g in groups),
        "rollout/groups_mixed_frac": _mean(g.mixed for g in groups),
        "rollout/entropy": -fmean(logprobs) if logprobs else None,
        "rollout/prob_mean": _mean(math.exp(p) for p in logprobs),
        "rollout/unique_frac": _mean(
            len({c.sample.response_ids for c in g.completions}) / n for g, n in zip(groups, sizes, strict=True)
        ),
        "rollout/repetition_frac": _mean(repetition(c.sample.response_ids) for c in completions),
        "rollout/repetition_frac_truncated": _mean(
            repetition(c.sample.response_ids) for c in completions if c.truncated
        ),
        "rollout/repetition_frac_finished": _mean(
            repetition(c.sample.response_ids) for c in completions if not c.truncated
        ),
        "reward/correctness": _mean(c.reward for c in completions),
        "reward/length_penalty": _mean(c.length_penalty for c in completions),
        "reward/verifier_timeout_frac": _mean(c.score.timed_out for c in completions),
        "reward/verifier_error_frac": _mean(c.score.error is not None for c in completions),
    }


def batch_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """The same over the completions trained on, and the share of their groups that have no signal."""
    outcome = _outcome([c for g in groups for c in g.completions])
    return {f"batch/{key}": value for key, value in outcome.items()} | {
        "sampling/groups_equal_rewards_frac": _mean(equal_rewards(g) for g in groups)
    }


def equal_rewards(group: Group) -> bool:
    """Whether all shaped rewards are equal, up to rounding: the group's advantages are then 0.

    Acceptance goes by correctness, so an accepted group may be one: under the hard punishment a group whose only right
    answer was truncated.
    """
    rewards = [c.reward_shaped for c in group.completions]
    return math.isclose(min(rewards), max(rewards))


def written_steps(groups: Sequence[Group], has_written_steps: Callable[[str], bool]) -> dict[str, float | None]:
    """`task/steps_frac`: share of responses that write steps before the answer."""
    return {"task/steps_frac": _mean(has_written_steps(c.text) for g in groups for c in g.completions)}


def repetition(ids: Sequence[int]) -> float:
    """Share of a response's n-grams that stood in it before.

    >>> repetition([1, 2, 3, 4, 1, 2, 3, 4])
    0.2
    """
    total = len(ids) - NGRAM + 1
    if total <= 0:
        return 0.0
    return 1 - len({tuple(ids[i : i + NGRAM]) for i in range(total)}) / total


def _outcome(completions: Sequence[Completion]) -> dict[str, float | None]:
    return {
        "accuracy": _mean(c.correct for c in completions),
        "reward": _mean(c.reward for c in completions),
        "length_mean": _mean(c.num_tokens for c in completions),
        "truncated_frac": _mean(c.truncated for c in completions),
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _variation(values: Sequence[float]) -> float | None:
    """Coefficient of variation: standard deviation (of the population) over the mean."""
    return pstdev(values) / fmean(values) if values else None
