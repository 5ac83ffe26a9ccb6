"""What config and machine decide: refused before torch loads, before another process starts and before a file moves.

Torch has the last word on GPUs (`check_devices`, in each process). What is looked at here is certain without it and
leaves the driver alone, because cells of a study are forked from this process.
"""

import ctypes
import os
from pathlib import Path

from dapo_lit.config import Config, ConfigError
from dapo_lit.config.trainer import Trainer

MANY_THREADS = 16
"""Threads of torch that no machine is too small for."""
WITHOUT_BASE = ("arithmetic", "file")
"""Tasks for which no base policy can be pre-trained."""
COMPLETION_BYTES = 1_000
"""At least so much does a completion take in memory: its tokens, their log-probs, its text and what is known of it."""


def check_machine(config: Config) -> None:
    """Raises ConfigError for a run that cannot work on this machine, whatever its data, policy and reward are."""
    trainer, algorithm, task = config.trainer, config.algorithm, config.task
    if config.policy.path is None and task.name in WITHOUT_BASE:
        raise ConfigError(f"policy.path is null and task.name={task.name} has no base policy; set policy.path")
    if trainer.accelerator == "gpu" and not may_have_gpu():
        check_devices(trainer, 0)
    if config.rollout.engine == "vllm" and config.rollout.vllm.placement != "server":
        from dapo_lit.engines.vllm_engine.installed import check_installed

        try:
            check_installed()
        except ValueError as error:
            raise ConfigError(str(error)) from None
    cores = os.cpu_count() or 1
    if trainer.threads > max(cores, MANY_THREADS):
        raise ConfigError(f"trainer.threads={trainer.threads}, but this machine has {cores} cores")
    completions = algorithm.num_prompts * algorithm.samples_per_prompt // (trainer.devices * trainer.num_nodes)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if completions * COMPLETION_BYTES > memory:
        raise ConfigError(
            f"algorithm.num_prompts={algorithm.num_prompts}: a step of {completions:,} completions does not fit into "
            f"the {memory / 1e9:.0f} GB of this machine; lower it, or algorithm.samples_per_prompt"
        )


def check_devices(trainer: Trainer, found: int) -> None:
    """Raises ConfigError if this machine has fewer than the GPUs that the run's processes on it take, one each."""
    if found >= trainer.devices:
        return
    if found == 0:
        fsdp = " trainer.devices=2 trainer.sharding.dtype=null" if trainer.strategy == "fsdp" else ""
        raise ConfigError(f"trainer.accelerator=gpu, but there is no GPU here; on a CPU: trainer.accelerator=cpu{fsdp}")
    gpus = "1 GPU" if found == 1 else f"{found} GPUs"
    raise ConfigError(f"trainer.devices={trainer.devices}, but this machine has {gpus}; set trainer.devices={found}")


def check_gpu_for(key: str) -> None:
    """Raises ConfigError if a command asks for a GPU, by `key`, where there is certainly none."""
    if not may_have_gpu():
        raise ConfigError(f"{key}, but there is no GPU here; leave it out, or take a CPU")


def may_have_gpu() -> bool:
    """False if no GPU can be used here: there is no driver of NVIDIA's or AMD's, or the environment hides all GPUs."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
