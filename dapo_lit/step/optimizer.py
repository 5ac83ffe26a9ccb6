"""The optimiser steps of one rollout step: learning rate, clipping, skipped updates, and the noise of the gradient.

And the counters of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ablations.errors import UserError
from dapo_lit.config import Config, Optimizer
from dapo_lit.objective.diagnostics import gradient_noise
from dapo_lit.step.batch import MicroBatch
from dapo_lit.step.scoring import PolicyForward


class Observer(Protocol):
    """Watches the updates of a step; a replay records them with it."""

    def micro_batch(
        self, epoch: int, micro: MicroBatch, logprobs: Tensor, old: Tensor, advantages: Tensor, weights: Tensor
    ) -> None:
        """Called after a micro-batch with [n] of each response token; `weights`: of its policy loss."""

    def update(self, loss: float, gradients: Sequence[Tensor]) -> None:
        """Called before each optimiser step with its gradient, not clipped yet."""


@dataclass
class Counters:
    """The cumulative x-axes of a run, over resumes; evaluation and downtime excluded."""

    step: int = 0
    """Rollout steps done."""
    gradient_step: int = 0
    """Optimiser steps done."""
    tokens_generated: int = 0
    """Response tokens sampled for training, discarded ones included."""
    tokens_trained: int = 0
    """Response tokens that carried loss, once an epoch."""
    wall_s: float = 0.0
    """Seconds in rollout steps."""

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class NonFiniteError(UserError):
    """Too many updates in a row had a loss or gradient that is not finite."""


def learning_rate(step: int, settings: Optimizer, total_steps: int) -> float:
    """Linear warm-up over rollout steps, then constant or linear to 0 after the last step. `step` counts from 1."""
    # Step 1 has lr / warmup_steps, not 0: a step at rate 0 would sample and train for nothing.
    warmup = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
    if settings.schedule == "constant" or step <= settings.warmup_steps:
        return settings.lr * warmup
    # The last step has a positive rate; 0 comes after it.
    return settings.lr * (total_steps - step + 1) / (total_steps - settings.warmup_steps)


def update_kernel(devices: set[str]) -> dict[str, bool]:
    """AdamW's implementation for parameters on these kinds of device.

    On a GPU one kernel updates everything and reads each number once.
    """
    return {"fused": True} if devices == {"cuda"} else {}


def begin_states(optimizer: torch.optim.Optimizer) -> None:
    """Gives every parameter the state that AdamW begins with in its first step; its updates are the same bit for bit.

    Optimizers of other kinds are left as they are.
    """
    if not isinstance(optimizer, torch.optim.AdamW):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                # A fused kernel counts on the parameter's device.
                counted_on = parameter.device if group["fused"] else "cpu"
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=counted_on),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                    **({"max_exp_avg_sq": torch.zeros_like(parameter)} if group["amsgrad"] else {}),
                }


@dataclass
class OptimizerSteps:
    """Takes optimiser steps with the gradients that the parameters hold, and keeps their losses and norms."""

    config: Config
    optimizer: Any
    forward: PolicyForward
    counters: Counters
    step: int
    critic_only: bool
    """The policy is not trained; its loss and gradient are not recorded."""
    bad_updates_in_a_row: int = 0
    observer: Observer | None = None
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    bad_updates: int = 0
    gradient_sum: list[Tensor] | None = None

    def __post_init__(self) -> None:
        # The optimizer's own parameters, never `policy.parameters()`: a forward pass without gradients (old log-probs,
        # a reference, values) leaves FSDP2's root group unsharded, and then that call returns the unsharded
        # embedding, head and final norm, whose `.grad` stays None.
        groups = self.optimizer.param_groups
        # An optimiser of one's own (docs/library.md) has any groups, and marks the critic's.
        own = not all("lr_factor" in group for group in groups)
        critics = [bool(group.get("critic")) if own else place > 0 for place, group in enumerate(groups)]
        self.policy_parameters: list[Tensor] = _parameters(groups, [not critic for critic in critics])
        self.critic_parameters: list[Tensor] = _parameters(groups, critics)
        if own:
            self.lr = groups[0]["lr"]
            return
        algorithm, total = self.config.algorithm, self.config.budget.steps
        # The policy's warm-up and schedule begin with its own first update, behind the steps of the critic alone.
        waits = min(algorithm.critic.warmup_steps if algorithm.critic else 0, self.step - 1)
        self.lr = learning_rate(self.step - waits, algorithm.optimizer, total - waits)
        of_critic = learning_rate(self.step, algorithm.optimizer, total)
        for group, is_critic in zip(groups, critics, strict=True):
            # Set at every step instead of kept by a scheduler: a resumed run needs no state for it.
            group["lr"] = (of_critic if is_critic else self.lr) * group["lr_factor"]

    def take(self, loss: Tensor) -> bool:
        """One optimiser step, unless the loss or a gradient norm is not finite; returns whether it was taken.

        loss: this rank's share of it, on the device.
        """
        gradients = [p.grad for p in self.policy_parameters if p.grad is not None]
        # Over all ranks: all of them skip an update, or none.
        norm = global_norm(gradients)
        critic_norm = global_norm([p.grad for p in self.critic_parameters if p.grad is not None])
        # The only point of an update where the host waits for the device.
        numbers = torch.stack([x.double() for x in (loss.to(norm.device), norm, critic_norm.to(norm.device))]).cpu()
        # Only the loss: the norms are those of all ranks already.
        self.forward.ranks.sum(numbers[:1])
        whole_loss, policy_norm, _ = numbers.tolist()
        # One NaN in a gradient would make every weight NaN, and the run would go on without an error.
        if not numbers.isfinite().all():
            self.optimizer.zero_grad()
            self.bad_updates += 1
            self.bad_updates_in_a_row += 1
            return False
        self.bad_updates_in_a_row = 0
        if not self.critic_only:
            self.losses.append(whole_loss)
            self.norms.append(policy_norm)
            if self.observer:
                # Before clipping, which scales the gradients in place.
                self.observer.update(whole_loss, gradients)
        # A copy of the gradient is little for policies made here.
        if self.config.policy.path is None and gradients:
            self._add_to_gradient_sum(gradients)
        grad_clip = self.config.algorithm.optimizer.grad_clip
        # Each by its own norm: the critic's must not shrink the policy's step.
        if grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.policy_parameters, grad_clip, norm)
            torch.nn.utils.clip_grads_with_norm_(self.critic_parameters, grad_clip, critic_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        # After the step: a skipped update counts nowhere.
        self.counters.gradient_step += 1
        return True

    def _add_to_gradient_sum(self, gradients: list[Tensor]) -> None:
        if self.gradient_sum is None:
            # A clone, because clipping scales the gradients in place.
            self.gradient_sum = [g.clone() for g in gradients]
        else:
            for total, gradient in zip(self.gradient_sum, gradients, strict=True):
                total.add_(gradient)

    def metrics(self) -> dict[str, float | None]:
        """Means over the steps that were taken."""
        noise = None
        if self.gradient_sum is not None:
            # From norms alone: the gradients of single updates need not be kept, only their sum.
            summed = float(global_norm(self.gradient_sum))
            noise = gradient_noise(sum(n**2 for n in self.norms), summed**2, len(self.norms))
        return {
            "loss/policy": sum(self.losses) / len(self.losses) if self.losses else None,
            "optim/grad_norm": sum(self.norms) / len(self.norms) if self.norms else None,
            "optim/grad_noise": noise,
            "optim/lr": self.lr,
            "optim/bad_updates": self.bad_updates,
        }


def _parameters(groups: Iterable[Mapping[str, Any]], chosen: Iterable[bool]) -> list[Tensor]:
    """The parameters of the chosen groups."""
    return [
        parameter for group, is_chosen in zip(groups, chosen, strict=True) if is_chosen for parameter in group["params"]
    ]


def global_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients together, shards on other ranks included."""
    norm = torch.nn.utils.get_total_norm(gradients)
    # Shards are on several ranks, and the norm of a shard would clip each rank by another factor.
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
