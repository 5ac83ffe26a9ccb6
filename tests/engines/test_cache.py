"""What the cache's memory held before does not reach a sample, as it may be anything: nothing clears it."""

import numpy as np
import torch
from test_torch_engine import ARCHITECTURES, make_engine, make_model

from dapo_lit.engines.protocol import SampleKey, SampleRequest, Sampling


def test_memory_that_held_nan_gives_the_same_samples(monkeypatch):
    """Longer prompts enter beside rows under way, so the cache is laid out anew with slots that no row has written."""
    model, rng = make_model(ARCHITECTURES["qwen2"]), np.random.default_rng(0)
    lengths = (2, 3, 2, 4, 40, 3, 60, 5, 2, 90, 7, 3)
    requests = [
        SampleRequest(SampleKey(0, f"p{i}", 0, 0), tuple(rng.integers(4, 40, length).tolist()))
        for i, length in enumerate(lengths)
    ]

    def samples() -> dict[SampleKey, list[int]]:
        engine = make_engine(model, max_batch_size=4)
        return {s.key: s.response_ids.tolist() for s in engine.generate(requests, Sampling(20))}

    expected, empty = samples(), torch.Tensor.new_empty

    def dirty(like: torch.Tensor, *size: object) -> torch.Tensor:
        return empty(like, *size).fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", dirty)
    assert samples() == expected
