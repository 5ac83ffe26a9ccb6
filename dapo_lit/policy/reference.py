"""The frozen policy that a KL term holds the trained one to."""

from copy import deepcopy

import torch
from torch import nn
from transformers import PreTrainedModel


class Reference:
    """A copy of a policy that is never trained, saved or synced.

    It is no module: as a part of the LightningModule it would be in every checkpoint and among the parameters of the
    strategy. The copy is made from the policy's initial weights, which a resumed run has again before its checkpoint
    is loaded.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        self.model = deepcopy(policy).requires_grad_(False).eval()

    def on(self, device: torch.device) -> PreTrainedModel:
        """The model, moved to `device` when it is first asked for there."""
        moved: nn.Module = self.model.to(device)
        assert isinstance(moved, PreTrainedModel)
        return moved
