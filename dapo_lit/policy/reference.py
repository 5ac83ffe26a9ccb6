"""The frozen reference policy of a KL term, and the value model of PPO: one number before each response token."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from dapo_lit.policy.lora import has_adapters, without_adapters


class Critic(nn.Module):
    """A linear head on a copy of the policy's backbone.

    The head starts at zero: the first values are 0, the middle of a reward of +-1, and no random number is drawn. The
    copy of a policy with adapters trains its own adapters.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        # A copy, not shared: PPO's value loss would otherwise move the policy.
        self.backbone = deepcopy(policy.base_model)
        self.head = nn.Linear(policy.config.hidden_size, 1, device="cpu")
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Float[Tensor, "n H"]) -> Float[Tensor, "n"]:
        """Values of the states of the backbone."""
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)


class Reference:
    """The policy as it was at the start of training: never trained, saved or synchronised.

    For a policy with adapters it is the policy with its adapters disabled, otherwise a copy of the initial weights (a
    resumed run has them before it loads its checkpoint). It is not an nn.Module: Lightning would save it in every
    checkpoint and give its parameters to the strategy.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        # With adapters the base is frozen, so it is the reference: no second copy of the weights.
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
                # On first use: Lightning moves the policy, and nothing else knows of this copy.
                self.model.to(device)
            yield self.model

    def release_memory(self) -> None:
        """Frees the gathered weights of a sharded copy; a sharded policy's backward pass frees its own."""
        for module in (self.model, self.model.get_output_embeddings()):
            if isinstance(module, FSDPModule) and not self.is_policy:
                # No backward pass follows a reference, so nothing else would.
                module.reshard()
