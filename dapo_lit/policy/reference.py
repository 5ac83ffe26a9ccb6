"""The frozen reference policy of a KL term."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from dapo_lit.policy.lora import has_adapters, without_adapters


class Reference:
    """The policy as it was at the start of training: never trained, saved or synchronised.

    For a policy with adapters it is the policy with its adapters disabled, otherwise a copy of the initial weights (a
    resumed run has them before it loads its checkpoint). It is not an nn.Module: Lightning would save it in every
    checkpoint and give its parameters to the strategy.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        self.is_policy = has_adapters(policy)
        self.model = policy if self.is_policy else deepcopy(policy).requires_grad_(False).eval()

    @contextmanager
    def on(self, device: torch.device) -> Iterator[PreTrainedModel]:
        """The model to use inside the block; an unsharded copy moves to `device` on first use."""
        if self.is_policy:
            with without_adapters(self.model):
                yield self.model
        else:
            if not isinstance(self.model, FSDPModule):
                self.model.to(device)
            yield self.model

    def rest(self) -> None:
        """Frees the gathered weights of a sharded copy; a sharded policy's backward pass frees its own."""
        for module in (self.model, self.model.get_output_embeddings()):
            if isinstance(module, FSDPModule) and not self.is_policy:
                module.reshard()
