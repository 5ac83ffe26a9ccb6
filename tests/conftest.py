"""Fixtures that every folder of tests shares."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets; tests that need it skip where DAPO_LIT_DATA does not name one."""
    folder = os.environ.get("DAPO_LIT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("DAPO_LIT_DATA does not name a folder with the data sets (aime_2024.jsonl, gsm8k_train.jsonl, ...)")
    return Path(folder)
