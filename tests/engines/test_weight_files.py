"""Weights that are handed over in a folder: in shards and in the reader's dtype."""

import pytest
import torch
from safetensors.torch import load_file

from dapo_lit.engines.vllm_server import engine
from dapo_lit.engines.vllm_server.engine import write_weights


def tensors() -> list[tuple[str, torch.Tensor]]:
    head = torch.arange(6.0).view(2, 3)
    return [("embed", head), ("norm", torch.tensor([1.5, -2.0])), ("head", head), ("turned", head.T)]


def read(folder) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.iterdir()) for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(("shard_bytes", "files"), [(10**6, 1), (60, 2), (32, 3), (1, 4)])
def test_any_size_of_shard_holds_the_same_tensors(tmp_path, monkeypatch, shard_bytes, files):
    monkeypatch.setattr(engine, "SHARD_BYTES", shard_bytes)
    names = write_weights(tmp_path / "w", iter(tensors()), dtype=torch.float32)
    assert names == ["embed", "norm", "head", "turned"]
    assert len(list((tmp_path / "w").iterdir())) == files
    found = read(tmp_path / "w")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors())


def test_tensors_are_written_in_the_readers_dtype_as_they_were_when_they_were_sent(tmp_path):
    buffer = torch.zeros(3)

    def sent():
        for value in (1.0, 2.0):
            yield f"t{value}", buffer.fill_(value)  # reused by the sender for the next

    write_weights(tmp_path / "w", sent(), dtype=torch.bfloat16)
    found = read(tmp_path / "w")
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()} == {
        "t1.0": (torch.bfloat16, [1.0] * 3),
        "t2.0": (torch.bfloat16, [2.0] * 3),
    }
