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
