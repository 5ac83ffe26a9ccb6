"""The policy's tensors as vLLM's network has them."""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig


class ServedModel:
    """The config and the tensors that vLLM is given."""

    def __init__(self, policy: PretrainedConfig) -> None:
        self.config = policy
        # Names and shapes only: no memory, no random numbers.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(policy)
        self._names = set(model.state_dict())
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())

    def tensors(self, named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Each tensor once, and the head where it is tied: vLLM would keep the old one."""
        sent: set[str] = set()
        for name, tensor in named_tensors:
            # In the file format a tied head has no tensor; vLLM's in-place reload wants one.
            has_tied_head = self.config.tie_word_embeddings and name == "model.embed_tokens.weight"
            for also in (name, "lm_head.weight") if has_tied_head else (name,):
                # FSDP gives a tied parameter under both of its names.
                if also not in sent:
                    sent.add(also)
                    yield also, tensor

    def check_names(self, sent: Collection[str]) -> None:
        """Raises ValueError naming missing and unexpected tensors; vLLM itself would keep what it is not given."""
        problems = [f"{name} is missing" for name in sorted(self._names - set(sent))]
        problems += [f"{name} is unexpected" for name in sorted(set(sent) - self._names)]
        if problems:
            raise ValueError("weights do not fit the model: " + "; ".join(problems[:8]))
