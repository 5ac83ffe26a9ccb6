"""A policy loss from outside the package (docs/new_loss.md): found by its path, its parameters filled in by name.

It is a function of response tokens, `loss(logprobs, old_logprobs, advantages, ...)`, each [n], that returns the loss of
each token, [n]. The further parameters that it names are filled in: those of MINIBATCH_PARAMETERS, the bounds of the
clip, and any key of algorithm.loss_options. A loss that names one of MINIBATCH_PARAMETERS may look at other tokens than
its own and is called with all tokens of a mini-batch at once. Any other is called with a part of them.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dapo_lit.config import ConfigError
from dapo_lit.imports import NamedError, described, named_object
from dapo_lit.objective.tokens import Bounds, PolicyLoss, Statistics, Tokens, token_statistics
from dapo_lit.seeds import PROBE

MINIBATCH_PARAMETERS = ("completions", "mask", "entropy", "generator")
"""Parameters that only a whole mini-batch can fill; fields of Tokens."""


def custom_loss(name: str, options: Mapping[str, Any], bounds: Bounds) -> tuple[PolicyLoss, frozenset[str], bool]:
    """The function at the path `name` as a policy loss, what it takes, and if it needs whole mini-batches."""
    function = _imported(name)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C
        raise ConfigError(
            f"algorithm.loss={name}: the names of its parameters cannot be read; call it in a function of your own"
        ) from None
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3:
        raise ConfigError(
            f"algorithm.loss={name}: it must take (logprobs, old_logprobs, advantages) and name what else it wants; "
            f"it takes {signature}"
        )
    others = {p.name: p for p in parameters if p not in positional[:3] and p.kind != p.VAR_POSITIONAL}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
    of_clip = {"clip_low": bounds.low, "clip_high": bounds.high, "clip_dual": bounds.dual}
    surplus = [key for key in options if key not in others or key in (*MINIBATCH_PARAMETERS, *of_clip)]
    if surplus and not takes_any:
        raise ConfigError(f"algorithm.loss_options.{surplus[0]}: {name} has no such option")
    filled = {key: value for key, value in {**of_clip, **options}.items() if key in others or key in options}
    unfilled = [
        key
        for key, p in others.items()
        if key not in (*filled, *MINIBATCH_PARAMETERS) and p.default is p.empty and p.kind != p.VAR_KEYWORD
    ]
    if unfilled:
        raise ConfigError(
            f"algorithm.loss={name}: nothing fills its parameter {unfilled[0]}; give algorithm.loss_options."
            f"{unfilled[0]} or a default. Filled are {', '.join((*MINIBATCH_PARAMETERS, *of_clip))}"
        )
    needs = [key for key in MINIBATCH_PARAMETERS if key in others]

    def loss(tokens: Tokens, bounds: Bounds) -> tuple[Tensor, Statistics]:
        needed = {key: getattr(tokens, key) for key in needs}
        losses = function(tokens.logprobs, tokens.old_logprobs, tokens.advantages, **needed, **filled)
        return losses, token_statistics(tokens, bounds)

    return loss, frozenset(filled), bool(needs)


def _imported(name: str) -> Callable[..., Tensor]:
    """A function by its dotted path."""
    try:
        function: Any = named_object(name)
    except NamedError as error:
        raise ConfigError(f"algorithm.loss={name}: {error}") from error
    if not callable(function):
        raise ConfigError(f"algorithm.loss={name}: it is not a function")
    return function


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
