"""The value model of PPO: one number for the state before each response token."""

from copy import deepcopy

from torch import Tensor, nn
from transformers import PreTrainedModel


class Critic(nn.Module):
    """A linear head on a copy of the policy's backbone, or on the policy's backbone itself.

    The head starts at zero: the first values are 0, the middle of a reward of +-1, and no random number is drawn. A
    shared backbone saves memory but not time, because values have their own forward pass. The copy of a policy with
    adapters trains its own adapters.
    """

    def __init__(self, policy: PreTrainedModel, *, shares_backbone: bool) -> None:
        super().__init__()
        self.backbone = None if shares_backbone else deepcopy(policy.base_model)
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[n] fp32 values of the states [n, hidden] of the backbone."""
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)
