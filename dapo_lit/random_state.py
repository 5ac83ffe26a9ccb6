"""Saves and restores the process's global random generators, for code that draws from them (vLLM on a CPU, your own
reward function). Everything in this package draws from keyed generators instead."""

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """State of Python, numpy and torch, on the CPU and on this process's GPU."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restores what `random_state` returned; a GPU's state only if there is a GPU."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
