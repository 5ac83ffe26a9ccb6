"""The group `trainer`: the hardware that a run uses and how the policy is laid out on it."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import PositiveFloat

from dapo_lit.config.sections import BOOKKEEPING, SCIENCE, PositiveInt, Section


class Sharding(Section):
    dtype: Annotated[Literal["bfloat16", "float16", "float32"] | None, SCIENCE]
    """Dtype of forward and backward, with one process too; weights stay in policy.dtype. null: the same."""


class Trainer(Section):
    accelerator: Literal["cpu", "gpu", "auto"]
    """The device to train on, by Lightning's name for it."""
    strategy: Literal["single", "fsdp"]
    """One process with the whole policy, or devices x num_nodes processes with shards of it."""
    devices: PositiveInt
    """Processes on each machine."""
    num_nodes: PositiveInt
    """Machines; more than one are started by torchrun or srun."""
    timeout_min: PositiveFloat
    """Minutes that a process waits for the others in training or in sampling, and for a vLLM server to load weights."""
    sharding: Sharding
    threads: PositiveInt
    """Threads of torch in this process; 1 is fastest for tiny models."""
    micro_batch_tokens: PositiveInt | Literal["auto"]
    """Tokens per forward and backward pass; sequences are packed without padding. auto: on a GPU the most that its free
    memory holds by the simulation of `plan`, on a CPU 4,096."""
    shared_prompt: Literal["auto", "prefixes", "branches"] | bool
    """Compute a group's prompt once for all its completions (same gradient); auto: if it saves 15 % of the tokens;
    prefixes: whatever tokens its completions begin with, too; branches: and their attention (on a GPU as prefixes)."""
    fp32_head: Annotated[bool, SCIENCE]
    """Compute log-probs with a float32 copy of the head if the policy has a narrower dtype."""
    checkpoint_every: Annotated[PositiveInt, BOOKKEEPING]
    """Rollout steps between checkpoints; two are kept."""
    grace_s: Annotated[PositiveFloat, BOOKKEEPING]
    """Seconds from SIGTERM, SIGUSR1 or SIGUSR2 to the end of the process."""
    compile: Literal["auto"] | bool
    """Compile the policy's layers and the head's arithmetic: the same numbers within rounding, a minute at the start;
    auto: on a GPU, in runs of 100 steps or more."""
    tf32: Annotated[bool, SCIENCE]
    """On a GPU: products of float32 tensors round their factors to 10 bits. Rows then differ from full float32 in the
    third digit; 16-bit products do not change."""
    activation_checkpointing: Literal["none", "full", "auto"]
    """Recomputed in backward: nothing, or whole layers; auto: layers where a GPU's memory asks for it."""

    @property
    def tokens_at_once(self) -> int:
        """`micro_batch_tokens` as a number."""
        # A trainer of one's own (docs/library.md) has not chosen.
        if self.micro_batch_tokens == "auto":
            raise ValueError("trainer.micro_batch_tokens=auto is chosen by the command `train`; give a number here")
        return self.micro_batch_tokens

    def faults(self) -> Iterator[str]:
        size = self.devices * self.num_nodes
        if self.strategy == "single" and size > 1:
            yield f"strategy=single is one process, but devices x num_nodes = {size}; set trainer=fsdp or devices=1"
