"""The value model of PPO: one number for the state before each response token."""

from copy import deepcopy

from torch import Tensor, nn
from transformers import PreTrainedModel

from dapo_lit.policy.attention import Layout, packed_hidden


class Critic(nn.Module):
    """A head that begins at 0, on a backbone of its own, begun as a copy of the policy's, or on the policy's.

    With a head of zeros the first values are 0, the middle of a reward of +-1, whatever the hidden states are, and no
    random number is drawn. A shared backbone saves the memory of a second one, not its time: values have a forward pass
    of their own.
    """

    def __init__(self, policy: PreTrainedModel, *, shares_backbone: bool) -> None:
        super().__init__()
        self.backbone = None if shares_backbone else deepcopy(policy.base_model)
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, policy: PreTrainedModel, input_ids: Tensor, packed: Layout, rows: Tensor, *, head_only: bool = False
    ) -> Tensor:
        """[n] fp32 values of the states at `rows` of the packed tokens `input_ids` [T].

        `head_only`: no gradient reaches a shared backbone, which is the policy's.
        """
        backbone = policy if self.backbone is None else self.backbone
        hidden = packed_hidden(backbone, input_ids, packed)[rows]
        if head_only and self.backbone is None:
            hidden = hidden.detach()
        return nn.functional.linear(hidden.float(), self.head.weight.float(), self.head.bias.float()).squeeze(-1)
