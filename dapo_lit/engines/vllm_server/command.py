"""The command that starts a server of vLLM for a policy, and the folder that the server starts from."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PretrainedConfig

from dapo_lit.engines.vllm_server.client import ORDER_S


@dataclass(frozen=True)
class ServerSettings:
    """Settings by which trainer and servers find each other and share the work."""

    urls: tuple[str, ...]
    """`http://host:port` of each."""
    folder: Path
    """Trainer and servers see it under this path."""
    max_model_tokens: int
    """Prompt and response together."""
    max_batch_size: int
    """Sequences decoded at once by each server."""
    transfer: Literal["folder", "nccl"] = "folder"
    """The way of the weights: files in `folder`, or from the trainer's GPU to those of the servers."""
    wait_s: float = 0.0
    """Seconds to wait for a server that does not answer yet."""
    order_s: float = ORDER_S
    """Seconds for an order, such as to load weights, as long as the server is alive."""
    fp32_head: bool = False
    deterministic: bool = False
    enforce_eager: bool = False
    """Neither compiled code nor CUDA graphs."""


def write_config(config: PretrainedConfig, dtype: torch.dtype, folder: Path) -> Path:
    """A folder with the policy's config, named by its content, so that no other policy's is taken for it."""
    # All fields: a difference to the defaults changes with the version of transformers.
    content = config.to_json_string(use_diff=False)
    digest = hashlib.blake2b(f"{content}{dtype}".encode(), digest_size=4).hexdigest()
    made = folder.absolute() / f"model_{digest}"
    config.save_pretrained(made)
    return made


def serve_command(model: Path, dtype: torch.dtype, settings: ServerSettings, host: str, port: str) -> str:
    """The shell command of one of `settings.urls`; host and port may be variables of the shell. Needs VLLM_API_KEY."""
    options = [
        f"--host {host} --port {port}",
        # Weights come at the first sync; a folder of real ones would have to be written for nothing.
        "--load-format dummy --skip-tokenizer-init --tokens-only",
        f"--dtype {str(dtype).removeprefix('torch.')}",
        f"--max-model-len {settings.max_model_tokens} --max-num-seqs {settings.max_batch_size}",
        # At a temperature the default, raw logits, is the log-prob of a distribution that nobody sampled from.
        "--logprobs-mode processed_logprobs --no-async-scheduling",
        # One line a completion would bury what fails.
        "--disable-uvicorn-access-log",
        # Asks for the key that each reads from its own environment, where no list of processes shows it.
        "--middleware dapo_lit.engines.vllm_server.guard.TokenGuard",
    ]
    if settings.fp32_head:
        options.append("""--hf-overrides '{"head_dtype": "float32"}'""")
    if settings.transfer == "nccl":
        options.append("""--weight-transfer-config '{"backend": "nccl"}'""")
    if settings.enforce_eager:
        options.append("--enforce-eager")
    # Development mode opens the routes that set weights; `guard.py` keeps others from them.
    invariant = "VLLM_BATCH_INVARIANT=1 " if settings.deterministic else ""
    return f"{invariant}VLLM_SERVER_DEV_MODE=1 VLLM_USE_V2_MODEL_RUNNER=0 vllm serve {model} {' '.join(options)}"
