"""The policy's tensors as vLLM's network has them."""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from dapo_lit.engines.vllm_engine.wide_heads import wide_heads


class ServedModel:
    """What vLLM is given: a config and tensors, with wider heads where it has no kernel for the policy's.

    head_dims: widths of heads that have a kernel; None: all.
    """

    def __init__(self, policy: PretrainedConfig, head_dims: tuple[int, ...] | None) -> None:
        self._wide = wide_heads(policy, head_dims) if head_dims else None
        self.config = self._wide.config(policy) if self._wide else policy
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(policy)
        self._names = set(model.state_dict())
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())

    def tensors(self, named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Each tensor once, and the head where it is tied: vLLM would keep the old one."""
        sent: set[str] = set()
        for name, tensor in named_tensors:
            has_tied_head = self.config.tie_word_embeddings and name == "model.embed_tokens.weight"
            for also in (name, "lm_head.weight") if has_tied_head else (name,):
                if also not in sent:
                    sent.add(also)
                    yield also, self._wide.tensor(also, tensor) if self._wide else tensor

    def check_names(self, sent: Collection[str]) -> None:
        """Raises ValueError naming missing and unexpected tensors; vLLM itself would keep what it is not given."""
        problems = [f"{name} is missing" for name in sorted(self._names - set(sent))]
        problems += [f"{name} is unexpected" for name in sorted(set(sent) - self._names)]
        if problems:
            raise ValueError("weights do not fit the model: " + "; ".join(problems[:8]))
