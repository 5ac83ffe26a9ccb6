"""The engine that several files share, and processes that need not import vLLM (forked.py)."""

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import forked
import pytest
import torch
from vllm_case import CONFIG, EOS, SETTINGS

from dapo_lit.engines.vllm_engine import engine, process

# Before the process is started from which commands are forked.
os.environ["TESTS_COMMANDS_IMPORT"] = " ".join(forked.IMPORTED)
os.environ.update(engine.SETTINGS)


@pytest.fixture(scope="session", autouse=True)
def forked_engines() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        same = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
        patch.setattr(process, "subprocess", SimpleNamespace(Popen=forked.Forked, **same))
        yield


@pytest.fixture(scope="session")
def process_engine(forked_engines: None) -> Iterator[process.VllmProcessEngine]:
    """vLLM in a process of its own."""
    made = process.VllmProcessEngine(CONFIG, eos_ids=[EOS], dtype=torch.float32, settings=SETTINGS)
    yield made
    made.close()
