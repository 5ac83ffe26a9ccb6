"""The state of the process's own random generators: what draws without a key (vLLM on a CPU, a reward function of
yours) goes on where it was. Everything here that draws has a key of its own and needs none of this."""

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Of Python, numpy and torch, on the CPU and on this process's GPU."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def restore_random_state(state: dict[str, Any]) -> None:
    """Sets what `random_state` gave; a GPU's only where there is one."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
