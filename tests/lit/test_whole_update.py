"""A whole update on a device without storage, along the paths of a GPU: operators, shapes, types and devices.

The device is torch's `meta`: autograd refuses CUDA tensors where torch is built without CUDA. What reaches the host
between the micro-batches or stays behind on the CPU raises there. It stands for neither numbers nor speed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import Run
from torch import Tensor, nn

from dapo_lit.policy import attention, head
from dapo_lit.step.updates import StepUpdates

DEVICE = torch.device("meta")


class EndedError(Exception):
    """After an update without values there is nothing to go on with."""


@contextmanager
def on_device(modules: list[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Parameters and buffers of the modules are on the device, tied ones once; floating-point ones as `dtype`."""
    tables = [names for m in modules for part in m.modules() for names in (part._parameters, part._buffers)]
    before, moved = [dict(names) for names in tables], dict[int, Any]()
    for names in tables:
        for name, value in names.items():
            if value is None:
                continue
            if id(value) not in moved:
                there = value.detach().to(DEVICE, dtype if value.is_floating_point() else value.dtype)
                trained = isinstance(value, nn.Parameter)
                moved[id(value)] = nn.Parameter(there, value.requires_grad) if trained else there
            names[name] = moved[id(value)]
    try:
        yield
    finally:
        for names, old in zip(tables, before, strict=True):
            names.update(old)


@pytest.mark.parametrize(
    ("dtype", "switches"),
    [
        (torch.float32, ()),
        (torch.bfloat16, ()),
        (torch.bfloat16, ("algorithm.entropy.bonus=0.01",)),
        (torch.bfloat16, ("algorithm=grpo",)),
        (torch.bfloat16, ("algorithm=ppo", "algorithm.critic.warmup_steps=0")),
    ],
)
def test_an_update_of_two_micro_batches(compose, monkeypatch, dtype, switches):
    losses, accumulate = list[Tensor](), StepUpdates._accumulate

    def accumulated(self: StepUpdates, *args: Any) -> Tensor:
        losses.append(accumulate(self, *args))
        return losses[-1]

    def update(self: StepUpdates) -> None:
        modules = [m for m in (self.forward.policy, self.forward.critic) if m]
        reference = [self.forward.reference.model] if self.forward.reference else []
        self.forward = replace(self.forward, device=DEVICE)
        self.on_device = self.tokens.to(DEVICE)
        minibatch = next(iter(self.batch.minibatches(self.config.algorithm.minibatch_prompts, 0)))
        with on_device([*modules, *reference], dtype):
            trained = [[p for p in m.parameters() if p.requires_grad] for m in modules]
            loss = self.accumulate_gradient(minibatch, 0)
            everything = [p for parameters in trained for p in parameters]
            assert all(p.grad is not None and p.grad.dtype == dtype for p in everything)
            self.steps.policy_parameters, self.steps.critic_parameters = (*trained, [])[:2]
            self.steps.optimizer = torch.optim.AdamW(everything, lr=1e-3)
            monkeypatch.setattr(Tensor, "cpu", lambda numbers: torch.ones(numbers.shape, dtype=numbers.dtype))
            assert self.steps.take(loss)
        raise EndedError

    monkeypatch.setattr(StepUpdates, "_accumulate", accumulated)
    monkeypatch.setattr(StepUpdates, "run", update)
    for room, kernel in ((attention, "has_variable_length_kernel"), (head, "has_wide_products")):
        monkeypatch.setattr(room, kernel, lambda values: values.is_meta and values.dtype == torch.bfloat16)
    with pytest.raises(EndedError):
        Run(compose("budget.steps=1", "trainer.micro_batch_tokens=64", *switches)).fit()
    assert len(losses) > 1
    assert all(loss.is_meta and loss.dtype == torch.float32 for loss in losses)
