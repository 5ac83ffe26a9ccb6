"""What the host asks of the device during the updates: nothing in a micro-batch, three numbers at once in an update."""

from collections import Counter
from typing import Any

import pytest
import torch
from small_runs import Run
from torch.utils._python_dispatch import TorchDispatchMode

from dapo_lit.step.optimizer import OptimizerSteps
from dapo_lit.step.updates import StepUpdates

aten = torch.ops.aten
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.unique_dim, aten._unique2, aten.equal}
"""Operations whose result the host needs; on a GPU it waits for all that was asked before."""

INDEXING = {aten.index, aten.index_put, aten.index_put_}
"""With a mask, the host needs to know how many."""


class Waits(TorchDispatchMode):
    """Counts what would make the host wait; on the CPU a copy to the host is no operation, so the calls count too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.looks = False
        for name in ("cpu", "tolist", "numpy"):
            monkeypatch.setattr(torch.Tensor, name, self.counting(name, getattr(torch.Tensor, name)))

    def counting(self, name: str, method: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            if self.looks:
                self.found[name] += 1
            return method(*args, **options)

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func.overloadpacket in INDEXING and any(i is not None and i.dtype == torch.bool for i in args[1])
        if func.overloadpacket in WAITS or masks:
            self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "Waits":
        self.looks = True
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.looks = False
        super().__exit__(*error)


def test_the_counter_finds_each_way_to_wait(monkeypatch):
    values = torch.arange(3.0)
    with Waits(monkeypatch) as waits:
        values.sum().item(), values.tolist(), values.cpu(), values[values > 1], bool(values[0] > 0)
    assert waits.found.total() == 5


@pytest.mark.parametrize(
    "switches",
    [
        ["algorithm.minibatch_prompts=2"],
        ["algorithm=gspo"],
        ["algorithm=grpo", "algorithm.kl.estimator=full"],
        ["algorithm=ppo"],
    ],
)
def test_no_micro_batch_makes_the_host_wait(compose, monkeypatch, switches):
    calls, accumulate, waits = 0, StepUpdates._accumulate, Waits(monkeypatch)

    def watched(self: StepUpdates, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        with waits:
            return accumulate(self, *args)

    monkeypatch.setattr(StepUpdates, "_accumulate", watched)
    mixed = "algorithm.techniques.dynamic_sampling=true"
    Run(compose("budget.steps=2", "trainer.micro_batch_tokens=64", *switches, mixed)).fit()
    assert calls > 2
    assert waits.found == Counter()


def test_an_update_waits_once_for_loss_and_gradient_norm(compose, monkeypatch):
    waits, take, updates = Waits(monkeypatch), OptimizerSteps.take, 0

    def watched(self: OptimizerSteps, addend: torch.Tensor) -> bool:
        nonlocal updates
        updates += 1
        # Adam's own count of steps lies on the host.
        monkeypatch.setattr(self.optimizer, "step", lambda: None)
        with waits:
            return take(self, addend)

    monkeypatch.setattr(OptimizerSteps, "take", watched)
    Run(compose("budget.steps=1")).fit()
    assert updates > 0
    assert waits.found["cpu"] == updates
    assert set(waits.found) <= {"cpu", "tolist", "aten._local_scalar_dense.default"}
    # Of the three numbers, on the host by then: as a list, and whether all are finite.
    assert waits.found["aten._local_scalar_dense.default"] == waits.found["tolist"] == updates
