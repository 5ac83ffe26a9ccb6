"""What vLLM's start changes in the process that it shares with the trainer, and its restoration."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dapo_lit.random_state import random_state, restore_random_state

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def process_kept() -> Iterator[None]:
    """Leaves threads, precision, random states, signal handlers and environment as they were.

    The engine's worker sets the precision of float32 products to `highest`, seeds all generators, and on the CPU puts
    a function that does nothing in place of `torch.set_num_threads`. Its batch-invariant mode sets NCCL_* variables
    that would bind the trainer's communicators, made later, to one channel. vLLM reads its own VLLM_* variables later.
    """
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    precision, drawn, variables = torch.get_float32_matmul_precision(), random_state(), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        restore_random_state(drawn)
        vllms = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
        os.environ.clear()
        os.environ.update(variables | vllms)
        if threading.current_thread() is threading.main_thread():  # no other thread can have changed them
            for number, handler in handlers.items():
                if handler is not None:  # None: not installed from Python
                    signal.signal(number, handler)
