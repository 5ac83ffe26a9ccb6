"""The value model of PPO: one number for the state before each response token."""

from copy import deepcopy

from torch import Tensor, nn
from transformers import PreTrainedModel

from dapo_lit.policy.attention import Layout, packed_hidden


class Critic(nn.Module):
    """A backbone of its own, begun as a copy of the policy's, and a head that begins at 0.

    With a head of zeros the first values are 0, the middle of a reward of +-1, whatever the hidden states are, and no
    random number is drawn.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = deepcopy(policy.base_model)
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, packed: Layout, rows: Tensor) -> Tensor:
        """[n] fp32 values of the states at `rows` of the packed tokens `input_ids` [T]."""
        hidden = packed_hidden(self.backbone, input_ids, packed)[rows]
        return nn.functional.linear(hidden.float(), self.head.weight.float(), self.head.bias.float()).squeeze(-1)
