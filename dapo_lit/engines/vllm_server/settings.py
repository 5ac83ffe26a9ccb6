"""The settings of vLLM's servers in the config."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ServerSettings:
    """How trainer and servers find each other and share the work."""

    urls: tuple[str, ...]
    """`http://host:port` of each."""
    folder: Path
    """Trainer and servers see it under this path."""
    max_model_tokens: int
    """Prompt and response together."""
    max_batch_size: int
    """Sequences decoded at once by each server."""
    transfer: Literal["folder", "nccl"] = "folder"
    shard_gb: float = 1.0
    """GiB of a file of weights, which is what is in memory of them at once."""
    request_s: float = 600.0
    """Seconds in which a server must answer anything but a request for a response."""
    wait_s: float = 0.0
    """Seconds to wait for a server that does not answer yet."""
    fp32_head: bool = False
    deterministic: bool = False
