"""Tries out the parts of an algorithm on a few numbers, so that a mistake shows before anything is spent."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dapo_lit.config import ConfigError
from dapo_lit.imports import described
from dapo_lit.objective.tokens import Bounds, PolicyLoss, Tokens
from dapo_lit.seeds import PROBE
from dapo_lit.switches.parts import CORRECTION, ESTIMATOR, PENALTY, Part

VERDICTS = ([True, False, False, False], [True, True, False, False], [False, False, False, False])


def check_part(part: Part) -> None:
    """Raises ConfigError for an estimator, a penalty or a correction that fails or gives something else than numbers of
    the right shape."""
    right = torch.tensor(VERDICTS, device="cpu")
    low, high = part.needs.rewards
    # As wide as the part's group asks for.
    right = right.repeat(1, -(-part.needs.group // 4)) if part.needs.group > 4 else right
    rewards = right.double().clamp(low, high)
    match part.slot:
        case slot if slot is ESTIMATOR and "lengths" in part.wants:
            arguments: tuple[Tensor, ...] = (torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64, device="cpu"),)
            batch = {"lengths": torch.tensor([2, 1], device="cpu"), "values": torch.zeros(3, device="cpu")}
        case slot if slot is ESTIMATOR:
            arguments, batch = (rewards,), {}
        case slot if slot is PENALTY:
            arguments, batch = (right[0],), {}
        case slot if slot is CORRECTION:
            arguments = (torch.tensor([-1.0, -2.0, -3.0], device="cpu"), torch.tensor([-1.1, -1.9, -3.0], device="cpu"))
            batch = {"completions": torch.tensor([0, 0, 1], device="cpu")}
        case _:
            return
    setting = f"algorithm.{part.setting}"
    try:
        got: Any = part.function(*arguments, **{key: batch[key] for key in part.wants})
    except Exception as error:
        raise ConfigError(f"{setting} fails on a small batch: {described(error)}") from error
    values, wanted = (got[0] if isinstance(got, tuple) else got), tuple(arguments[0].shape)
    if not isinstance(values, Tensor) or values.shape != arguments[0].shape:
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ConfigError(f"{setting}: it must return a tensor {wanted} for {wanted}; it returned {shape}")
    if not values.isfinite().all():
        raise ConfigError(f"{setting}: it returned {values.flatten().tolist()}; every number must be finite")


def check_change(change: Callable[..., Any]) -> None:
    """Raises ConfigError for a technique of the user's whose `advantages` fails or gives something else."""
    advantages, name = torch.tensor([1.0, 1.0, -1.0], device="cpu"), f"{change.__module__}.{change.__qualname__}"
    try:
        got: Any = change(advantages, torch.tensor([0, 0, 1], device="cpu"))
    except Exception as error:
        raise ConfigError(f"algorithm.own_techniques: {name} fails on a small batch: {described(error)}") from error
    if not isinstance(got, Tensor) or got.shape != advantages.shape or not got.isfinite().all():
        raise ConfigError(
            f"algorithm.own_techniques: {name} must return an advantage for each token, (3,) for 3 and finite; it "
            f"returned {got}"
        )


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
