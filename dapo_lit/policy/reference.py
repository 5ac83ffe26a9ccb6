"""The frozen policy that a KL term holds the trained one to."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from dapo_lit.policy.lora import has_adapters, without_adapters


class Reference:
    """What a policy was when training began: never trained, saved or synced.

    Of a policy with adapters it is the policy itself without them. Of any other it is a copy, made from the initial
    weights, which a resumed run has again before its checkpoint is loaded. It is no module: as a part of the
    LightningModule a copy would be in every checkpoint and among the parameters of the strategy.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        self.is_policy = has_adapters(policy)
        self.model = policy if self.is_policy else deepcopy(policy).requires_grad_(False).eval()

    @contextmanager
    def on(self, device: torch.device) -> Iterator[PreTrainedModel]:
        """The model to ask while the context is open; a copy that is not sharded moves to `device` the first time."""
        if self.is_policy:
            with without_adapters(self.model):
                yield self.model
        else:
            if not isinstance(self.model, FSDPModule):
                self.model.to(device)
            yield self.model

    def rest(self) -> None:
        """A sharded copy gives up what it gathered; of a policy in shards its own backward pass does so."""
        for module in (self.model, self.model.get_output_embeddings()):
            if isinstance(module, FSDPModule) and not self.is_policy:
                module.reshard()
