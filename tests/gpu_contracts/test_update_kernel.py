"""The optimiser of a GPU: torch's fused AdamW where all parameters are there, on one mesh."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dapo_lit.step.optimizer import update_kernel


@pytest.mark.parametrize(
    ("device", "tensor_parallel", "expected"),
    [("cuda", 1, {"fused": True}), ("cpu", 1, {}), ("cuda", 2, {"foreach": False})],
)
def test_the_kernel_follows_the_parameters_device_and_torch_takes_it(device, tensor_parallel, expected):
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.empty(3, 3, device=device), requires_grad=False)
        chosen = update_kernel({parameter.device.type}, tensor_parallel)
        assert chosen == expected
        torch.optim.AdamW([parameter], **chosen)  # refuses fused updates of what it has no kernel for


def test_the_fused_update_is_that_of_the_loop_up_to_rounding():
    """On the CPU, which has the kernel as well: the hyper-parameters mean the same to both."""
    found = []
    for options in ({"fused": True}, {"foreach": False}):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(64, 8))
        optimizer = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, **options)
        for _ in range(5):
            weight.grad = torch.randn(64, 8)
            optimizer.step()
        found.append(weight.detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-7)
