"""The optimiser steps of one rollout step: learning rate, clipping, what is skipped, and the noise of the gradient."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo_lit.config import Optimizer
from dapo_lit.objective.diagnostics import gradient_noise

if TYPE_CHECKING:
    from dapo_lit.lit.module import DAPOModule


class NonFiniteError(RuntimeError):
    """Too many updates in a row had a loss or gradient that is not finite."""


def learning_rate(step: int, settings: Optimizer, total_steps: int) -> float:
    """Linear warm-up over rollout steps, then constant or linear to 0 after the last step. `step` counts from 1."""
    warmup = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
    if settings.schedule == "constant" or step <= settings.warmup_steps:
        return settings.lr * warmup
    return settings.lr * (total_steps - step + 1) / (total_steps - settings.warmup_steps)


class GradientSteps:
    """Steps of the module's optimiser with the gradients that lie at its parameters.

    critic_alone: the policy is not trained, and its loss and gradient are not recorded.
    """

    def __init__(self, module: "DAPOModule", step: int, *, critic_alone: bool) -> None:
        config = module.config
        self.module = module
        self.step = step
        self.critic_alone = critic_alone
        self.optimizer: Any = module.optimizers()
        self.trainable = [p for p in module.policy.parameters() if p.requires_grad]
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.gradient_sum: list[Tensor] | None = None
        self.bad_updates = 0
        self.lr = learning_rate(step, config.algorithm.optimizer, config.budget.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["lr_factor"]

    def make(self, addend: Tensor) -> bool:
        """One optimiser step, unless the loss or the gradient norm is not finite; whether it was made.

        addend: this rank's of the loss.
        """
        module, settings = self.module, self.module.config.algorithm.optimizer
        gradients = [p.grad for p in self.trainable if p.grad is not None]
        norm = global_norm(gradients)  # over all ranks: all of them skip an update, or none
        critic = [] if module.critic is None else list(module.critic.parameters())
        critic_norm = global_norm([p.grad for p in critic if p.grad is not None])
        # The one moment of an update in which the device is waited for.
        numbers = torch.stack([x.double() for x in (addend.to(norm.device), norm, critic_norm.to(norm.device))]).cpu()
        module.ranks.sum(numbers[:1])
        loss, policy_norm, _ = numbers.tolist()
        if not numbers.isfinite().all():
            self.optimizer.zero_grad()
            self.bad_updates += 1
            module.bad_updates_in_a_row += 1
            return False
        module.bad_updates_in_a_row = 0
        if not self.critic_alone:
            self.losses.append(loss)
            self.norms.append(policy_norm)
            if module.observer:
                module.observer.update(loss, gradients)
        if module.config.trainer.grad_noise and gradients:
            self._add_to_gradient_sum(gradients)
        if settings.grad_clip is not None:  # each by its own norm: the critic's must not shrink the policy's step
            one_mesh = module.config.trainer.sharding.tensor_parallel == 1
            torch.nn.utils.clip_grads_with_norm_(self.trainable, settings.grad_clip, norm, None if one_mesh else False)
            torch.nn.utils.clip_grads_with_norm_(critic, settings.grad_clip, critic_norm, None if one_mesh else False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        module.counters.gradient_step += 1
        return True

    def _add_to_gradient_sum(self, gradients: list[Tensor]) -> None:
        if self.gradient_sum is None:
            self.gradient_sum = [g.clone() for g in gradients]
        else:
            for total, gradient in zip(self.gradient_sum, gradients, strict=True):
                total.add_(gradient)

    def metrics(self) -> dict[str, float | None]:
        """Means over the steps that were made."""
        noise = None
        if self.gradient_sum is not None:
            summed = float(global_norm(self.gradient_sum))
            noise = gradient_noise(sum(n**2 for n in self.norms), summed**2, len(self.norms))
        return {
            "loss/policy": sum(self.losses) / len(self.losses) if self.losses else None,
            "optim/grad_norm": sum(self.norms) / len(self.norms) if self.norms else None,
            "optim/grad_noise": noise,
            "optim/lr": self.lr,
            "optim/bad_updates": self.bad_updates,
        }


def global_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients together, shards on other ranks included."""
    by_mesh: dict[Any, list[Tensor]] = {}  # under tensor parallelism matrices lie on one mesh and norms on another
    for gradient in gradients:
        by_mesh.setdefault(gradient.device_mesh if isinstance(gradient, DTensor) else None, []).append(gradient)
    norms = [torch.nn.utils.get_total_norm(some) for some in by_mesh.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return whole[0] if len(whole) == 1 else torch.nn.utils.get_total_norm(whole)
