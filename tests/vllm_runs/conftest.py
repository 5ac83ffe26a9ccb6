"""The engine that several files share: each start of vLLM takes as long as their tests."""

from collections.abc import Iterator

import pytest
import torch
from vllm_case import CONFIG, EOS, SETTINGS

from dapo_lit.engines.vllm_engine.process import VllmProcessEngine


@pytest.fixture(scope="session")
def process_engine() -> Iterator[VllmProcessEngine]:
    """vLLM in a process of its own."""
    made = VllmProcessEngine(CONFIG, eos_ids=[EOS], dtype=torch.float32, settings=SETTINGS)
    yield made
    made.close()
