"""Tries out the parts of an algorithm on a few numbers, so that a mistake shows before anything is spent."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablations.metrics import Metric
from dapo_lit.config import ConfigError
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sample, SampleKey, token_ids
from dapo_lit.imports import described
from dapo_lit.objective.tokens import Bounds, PolicyLoss, Tokens
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.seeds import PROBE
from dapo_lit.switches.parts import CORRECTION, ESTIMATOR, PENALTY, Part, small_groups

VERDICTS = ([True, False, False, False], [True, True, False, False], [False, False, False, False])
Batch = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""What a part is called with: in order, and by name."""


def check_part(part: Part) -> None:
    """Raises ConfigError for an estimator, a penalty or a correction that fails or gives something else than numbers of
    the right shape."""
    setting = f"algorithm.{part.setting}"
    for arguments, batch in small_batches(part):
        try:
            got: Any = part.function(*arguments, **{key: batch[key] for key in part.wants})
        except Exception as error:
            raise ConfigError(f"{setting} fails on a small batch: {described(error)}") from error
        if part.slot is ESTIMATOR and isinstance(got, tuple) != ("values" in part.wants):
            raise ConfigError(
                f"{setting}: it must return advantages and returns, which the critic is fitted to, and it returned one"
                if "values" in part.wants
                else f"{setting}: it must return advantages only; returns are for a critic, which it has no `values` of"
            )
        values, wanted = (got[0] if isinstance(got, tuple) else got), tuple(arguments[0].shape)
        if not isinstance(values, Tensor) or values.shape != arguments[0].shape:
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ConfigError(f"{setting}: it must return a tensor {wanted} for {wanted}; it returned {shape}")
        if not values.isfinite().all():
            raise ConfigError(f"{setting}: it returned {values.flatten().tolist()}; every number must be finite")


def small_batches(part: Part) -> list[Batch]:
    """What a part is tried out on; none for a loss, which has a trial of its own."""
    match part.slot:
        case slot if slot is ESTIMATOR and part.wants:
            rewards = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64, device="cpu")
            return [
                (
                    (rewards,),
                    {"lengths": torch.tensor([2, 1], device="cpu"), "values": torch.zeros(3, device="cpu")},
                )
            ]
        case slot if slot is ESTIMATOR:
            right = torch.tensor(VERDICTS, device="cpu")
            # As wide as the part's group asks for.
            right = right.repeat(1, -(-part.needs.group // 4)) if part.needs.group > 4 else right
            rewards = right.double() * 2 - 1 if part.needs.both_signs else right.double()
            return [((rewards.clamp(*part.needs.rewards),), {})]
        case slot if slot is PENALTY:
            return [((verdicts,), {}) for verdicts in small_groups(part)]
        case slot if slot is CORRECTION:
            old, rollout = (torch.tensor(x, device="cpu") for x in ([-1.0, -2.0, -3.0], [-1.1, -1.9, -3.0]))
            return [((old, rollout), {"completions": torch.tensor([0, 0, 1], device="cpu")})]
        case _:
            return []


def check_control(part: Part) -> None:
    """Raises ConfigError for a controller that fails, or gives something else than two finite numbers of at least 0."""
    setting = f"algorithm.{part.setting}"
    for entropy in (0.0, 0.5, 10.0):
        try:
            got: Any = part.function(0.01, entropy)
        except Exception as error:
            raise ConfigError(f"{setting} fails on an entropy of {entropy:g}: {described(error)}") from error
        numbers = got if isinstance(got, tuple) and len(got) == 2 else (None,)
        if not all(isinstance(number, (int, float)) and 0 <= number < math.inf for number in numbers):
            raise ConfigError(
                f"{setting}: it must return the coefficient and the bonus of the next step, two numbers of at least "
                f"0; it returned {got!r}"
            )


def check_change(change: Callable[..., Any]) -> None:
    """Raises ConfigError for a technique of the user's whose `advantages` fails or gives something else."""
    advantages = torch.tensor([1.0, 1.0, -1.0], device="cpu")
    got = _tried(change, advantages, torch.tensor([0, 0, 1], device="cpu"))
    if not isinstance(got, Tensor) or got.shape != advantages.shape or not got.isfinite().all():
        raise ConfigError(
            f"algorithm.own_techniques: {_path(change)} must return an advantage for each token, (3,) for 3 and "
            f"finite; it returned {got}"
        )


def check_keeps(keeps: Callable[..., Any]) -> None:
    """Raises ConfigError for a technique of the user's whose `keeps` fails or gives something else."""
    lengths = torch.tensor([3, 8, 5], device="cpu")
    got = _tried(keeps, lengths, lengths == 8, lengths == 3)
    if not isinstance(got, Tensor) or got.shape != lengths.shape or got.dtype is not torch.bool:
        raise ConfigError(
            f"algorithm.own_techniques: {_path(keeps)} must return a bool for each completion, (3,) for 3; it "
            f"returned {got}"
        )


def check_metric(metric: Metric) -> None:
    """Raises ConfigError for a metric of the user's that fails on two small groups or is no number."""
    groups = []
    for index, right in enumerate(VERDICTS[1:]):
        groups.append(Group(1, index, Problem(f"p{index}", "1 + 2 =", "3"), 0, token_ids((1, 2))))
        for place, correct in enumerate(right):
            key, ids = SampleKey(1, f"p{index}", 0, place), token_ids(range(3, 4 + place))
            logprobs = np.full(len(ids), -0.5, np.float32)
            sample = Sample(key, ids, logprobs, finished=place < 3, policy_version=0)
            value = 1.0 if correct else -1.0
            groups[-1].completions.append(
                Completion(sample, "3" if correct else "4", Score(correct, value), value, 0.0, value)
            )
    measured(metric, groups)


def measured(metric: Metric, groups: Sequence[Group]) -> float | None:
    """The value of a metric of the user's.

    Raises ConfigError: it fails, or is no number.
    """
    assert metric.measure is not None
    if not any(group.completions for group in groups):  # nothing was generated: as the metrics of the package
        return None
    try:
        value: Any = metric.measure(groups)
    except Exception as error:
        raise ConfigError(f"logger.own_metrics: {metric.key} fails: {described(error)}") from error
    if hasattr(value, "tolist"):  # of numpy or torch
        value = value.tolist()
    if value is not None and not isinstance(value, (int, float)):
        raise ConfigError(f"logger.own_metrics: {metric.key} must be a number or None; it is {value!r}")
    return None if value is None else float(value)


def _tried(function: Callable[..., Any], *arguments: Tensor) -> object:
    try:
        return function(*arguments)
    except Exception as error:
        raise ConfigError(
            f"algorithm.own_techniques: {_path(function)} fails on a small batch: {described(error)}"
        ) from error


def _path(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def check_loss(loss: PolicyLoss, bounds: Bounds, name: str, whole_minibatch: bool) -> None:
    """Calls a loss with eight tokens of three completions, so that a mistake shows before anything is spent."""
    generator = torch.Generator(device="cpu").manual_seed(PROBE)
    old = -torch.rand(8, generator=generator, device="cpu") - 0.1
    logprobs = (old + 0.1 * torch.randn(8, generator=generator, device="cpu")).requires_grad_()
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=torch.tensor([1.0, 1, 1, -1, -1, 0.5, 0.5, 0.5], device="cpu"),
        entropy=torch.rand(8, generator=generator, device="cpu"),
        completions=torch.tensor([0, 0, 0, 1, 1, 2, 2, 2], device="cpu"),
        mask=torch.ones(8, dtype=torch.bool, device="cpu"),
        generator=generator,
    )
    try:
        losses, _ = loss(tokens, bounds)
    except Exception as error:
        raise ConfigError(f"algorithm.loss={name} fails on a small batch: {described(error)}") from error
    if not isinstance(losses, Tensor) or losses.shape != logprobs.shape:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ConfigError(
            f"algorithm.loss={name}: it must return the loss of each token, (8,) for 8; it returned {got}"
        )
    if not losses.requires_grad or not losses.isfinite().all():
        raise ConfigError(f"algorithm.loss={name}: its loss must be finite and depend on logprobs differentiably")
    if whole_minibatch:
        return
    halves = [Tokens(logprobs[s], old[s], tokens.advantages[s]) for s in (slice(0, 3), slice(3, 8))]
    if not torch.allclose(torch.cat([loss(half, bounds)[0] for half in halves]), losses, atol=1e-6):
        raise ConfigError(
            f"algorithm.loss={name}: the loss of a token changes with the other tokens, so it would depend on the "
            "split into micro-batches; add a parameter `completions`, and it is called with whole mini-batches"
        )
