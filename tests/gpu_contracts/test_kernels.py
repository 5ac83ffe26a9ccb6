"""Which tensors get the kernels of a GPU: torch's fused AdamW, packed attention, products with wide sums."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dapo_lit.policy.attention import has_variable_length_kernel
from dapo_lit.policy.head import has_wide_products
from dapo_lit.step.optimizer import update_kernel


@pytest.mark.parametrize(("device", "expected"), [("cuda", {"fused": True}), ("cpu", {})])
def test_the_optimiser_kernel_follows_the_parameters_device_and_torch_takes_it(device, expected):
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.empty(3, 3, device=device), requires_grad=False)
        chosen = update_kernel({parameter.device.type})
        assert chosen == expected
        torch.optim.AdamW([parameter], **chosen)  # refuses fused updates of what it has no kernel for


@pytest.mark.parametrize("has_kernel", [has_variable_length_kernel, has_wide_products])
def test_a_gpu_in_half_precision_has_attention_and_products_of_its_own_and_nothing_else_has(has_kernel):
    with FakeTensorMode():
        for dtype, device, expected in (
            (torch.bfloat16, "cuda", True),
            (torch.float16, "cuda", True),
            (torch.float32, "cuda", False),
            (torch.bfloat16, "cpu", False),
        ):
            assert has_kernel(torch.empty(1, 1, dtype=dtype, device=device)) == expected
