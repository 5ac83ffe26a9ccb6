"""The policy loss that the config names, built in or of one's own, and how it is called.

A loss is a function of the tokens of a mini-batch, `loss(logprobs, old_logprobs, advantages, ...)`, each [n], that
returns the loss of each token, [n]. What else it wants it names as parameters, of which these are given:

    completions [n] the completion of each token    clip_low, clip_high, clip_dual  the bounds in effect
    mask        [n] True where it carries loss      any key of algorithm.loss_options
    entropy     [n] nats, without gradient
    generator   for draws of random numbers, seeded by run, step and mini-batch

A loss that names one of the first four may look at other tokens than its own: it is called once with all tokens of a
mini-batch. Any other is called a micro-batch at a time.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dapo_lit.config import Algorithm, ConfigError
from dapo_lit.objective.covariance import clip_cov_loss, kl_cov_loss
from dapo_lit.objective.entropy import top_entropy_mask
from dapo_lit.objective.losses import cispo_loss, clipped_policy_loss, reinforce_loss
from dapo_lit.objective.sequence_losses import gmpo_loss, gspo_loss, gspo_token_loss

BUILT_IN: dict[str, Callable[..., Tensor]] = {
    "clip": clipped_policy_loss,
    "reinforce": reinforce_loss,
    "cispo": cispo_loss,
    "gspo": gspo_loss,
    "gspo_token": gspo_token_loss,
    "gmpo": gmpo_loss,
    "clip_cov": clip_cov_loss,
    "kl_cov": kl_cov_loss,
}
OF_THE_BATCH = ("completions", "mask", "entropy", "generator")
"""Parameters that only a whole mini-batch can fill."""


@dataclass(frozen=True)
class Tokens:
    """The response tokens of a mini-batch, n of them."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    completions: Tensor
    mask: Tensor
    entropy: Tensor
    generator: torch.Generator


@dataclass(frozen=True)
class PolicyLoss:
    """A loss with its options filled in."""

    function: Callable[..., Tensor]
    needs: tuple[str, ...]
    """Those of OF_THE_BATCH that it takes."""
    top_entropy_frac: float
    """Below 1: tokens of lower entropy than this share of the mini-batch carry no loss."""
    options: frozenset[str] = frozenset()
    """Bounds and options that it takes."""

    @property
    def of_whole_minibatch(self) -> bool:
        """Whether the loss of a token depends on other tokens."""
        return bool(self.needs) or self.top_entropy_frac < 1

    def of_tokens(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
        """[n] where each token stands for itself."""
        return self.function(logprobs, old_logprobs, advantages)

    def of_minibatch(self, tokens: Tokens) -> Tensor:
        """[n] with all tokens of a mini-batch."""
        wanted = {name: getattr(tokens, name) for name in self.needs}
        losses = self.function(tokens.logprobs, tokens.old_logprobs, tokens.advantages, **wanted)
        if self.top_entropy_frac == 1:
            return losses
        kept = top_entropy_mask(tokens.entropy, tokens.mask, frac=self.top_entropy_frac)
        return torch.where(kept, losses, 0.0)


def policy_loss(algorithm: Algorithm, *, clip_high: float) -> PolicyLoss:
    """The loss of `algorithm.loss`; `clip_high` is the upper bound in effect.

    Raises:
        ConfigError: no such loss, a parameter that nothing fills, an option that it does not take, or a loss of one's
            own that does not return one differentiable number a token.
    """
    name, options = algorithm.loss, dict(algorithm.loss_options)
    function = BUILT_IN[name] if name in BUILT_IN else _imported(name)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3:
        raise ConfigError(
            f"algorithm.loss={name}: it must take (logprobs, old_logprobs, advantages) and name what else it wants; "
            f"it takes {inspect.signature(function)}"
        )
    bounds = {"clip_low": algorithm.clip.low, "clip_high": clip_high, "clip_dual": algorithm.clip.dual}
    others = {p.name: p for p in parameters if p not in positional[:3] and p.kind not in (p.VAR_POSITIONAL,)}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
    surplus = [key for key in options if key not in others or key in (*OF_THE_BATCH, *bounds)]
    if surplus and not takes_any:
        raise ConfigError(f"algorithm.loss_options.{surplus[0]}: {name} has no such option")
    filled = {key: value for key, value in (bounds | options).items() if key in others or key in options}
    unfilled = [
        key
        for key, p in others.items()
        if key not in filled and key not in OF_THE_BATCH and p.default is p.empty and p.kind != p.VAR_KEYWORD
    ]
    if unfilled:
        raise ConfigError(
            f"algorithm.loss={name}: nothing fills its parameter {unfilled[0]}; give algorithm.loss_options."
            f"{unfilled[0]} or a default. Filled are {', '.join((*OF_THE_BATCH, *bounds))}"
        )
    needs = tuple(key for key in OF_THE_BATCH if key in others)
    loss = PolicyLoss(partial(function, **filled), needs, algorithm.entropy.top_frac, frozenset(filled))
    try_out(loss, name)
    return loss


def _imported(name: str) -> Callable[..., Tensor]:
    """A function by its dotted path."""
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigError(
            f"algorithm.loss={name}: no such loss; there are {', '.join(BUILT_IN)}, or give the path of a function of "
            "your own: package.module.function"
        )
    try:
        function: Any = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(
            f"algorithm.loss={name}: {error}; the folder that holds {module.split('.')[0]} must be in PYTHONPATH"
        ) from None
    except AttributeError:
        raise ConfigError(f"algorithm.loss={name}: {module} has no {attribute}") from None
    if not callable(function):
        raise ConfigError(f"algorithm.loss={name}: it is no function")
    return function


def try_out(loss: PolicyLoss, name: str) -> None:
    """Calls a loss with eight tokens of three completions, before anything is spent.

    Raises:
        ConfigError: it fails, does not return one number a token, has no gradient, or mixes tokens without saying so.
    """
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(8, generator=generator) - 0.1
    logprobs = (old + 0.1 * torch.randn(8, generator=generator)).requires_grad_()
    advantages = torch.tensor([1.0, 1, 1, -1, -1, 0.5, 0.5, 0.5])
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=advantages,
        completions=torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]),
        mask=torch.ones(8, dtype=torch.bool),
        entropy=torch.rand(8, generator=generator),
        generator=generator,
    )
    try:
        losses = loss.of_minibatch(tokens)
    except Exception as error:
        raise ConfigError(f"algorithm.loss={name} fails on a small batch: {type(error).__name__}: {error}") from error
    if not isinstance(losses, Tensor) or losses.shape != logprobs.shape:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ConfigError(
            f"algorithm.loss={name}: it must return the loss of each token, (8,) for 8; it returned {got}"
        )
    if not losses.requires_grad or not losses.isfinite().all():
        raise ConfigError(f"algorithm.loss={name}: its loss must be finite and depend on logprobs differentiably")
    if not loss.of_whole_minibatch:
        halves = [loss.of_tokens(logprobs[s], old[s], advantages[s]) for s in (slice(0, 3), slice(3, 8))]
        if not torch.allclose(torch.cat(halves), losses, atol=1e-6):
            raise ConfigError(
                f"algorithm.loss={name}: the loss of a token changes with the other tokens, so it would depend on the "
                "split into micro-batches; add a parameter `completions`, and it is called with whole mini-batches"
            )
