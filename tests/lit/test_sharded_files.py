"""A sharded checkpoint that the disk does not take: an error that names the folder, not a traceback of every rank."""

import resource

import pytest
import torch

from dapo_lit.lit.strategy import ShardedStrategy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("weights", r"step_000002\.part: rank 0 could not write its part; is the disk full\?"),
        ("metadata", r"File too large.*step_000002\.part"),
    ],
)
def test_a_full_disk_in_a_sharded_save_names_the_folder(tmp_path, part, said):
    numbers = {"large": torch.zeros(100_000)}
    state = {
        "state_dict": numbers if part == "weights" else {},
        "optimizer_states": [{"step": torch.zeros(1)}],
        "others": numbers if part == "metadata" else {},
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = tmp_path / "step_000002.part"
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # a file that grows beyond it cannot be written
    try:
        with pytest.raises(OSError, match=said):
            ShardedStrategy(1, 1).save_checkpoint(state, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
