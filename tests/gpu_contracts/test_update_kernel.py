"""The optimiser of a GPU: torch's fused AdamW where all parameters are there."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dapo_lit.step.optimizer import update_kernel


@pytest.mark.parametrize(("device", "expected"), [("cuda", {"fused": True}), ("cpu", {})])
def test_the_kernel_follows_the_parameters_device_and_torch_takes_it(device, expected):
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.empty(3, 3, device=device), requires_grad=False)
        chosen = update_kernel({parameter.device.type})
        assert chosen == expected
        torch.optim.AdamW([parameter], **chosen)  # refuses fused updates of what it has no kernel for
