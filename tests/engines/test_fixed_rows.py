"""Rows in fixed shapes, which CUDA graphs can repeat: here without a GPU and without a capture.

What a capture adds is in tests/gpu_contracts/test_cuda_graphs.py; test_torch_engine.py compares both kinds of rows with
transformers.
"""

import numpy as np
import pytest
import torch
from test_torch_engine import ARCHITECTURES, EOS, by_key, make_engine, make_model, make_requests

from dapo_lit.engines.protocol import SampleRequest, Sampling, run_to_end
from dapo_lit.engines.samples import Sample, SampleKey
from dapo_lit.engines.torch_engine import cuda_graphs
from dapo_lit.engines.torch_engine import engine as engines
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.engines.torch_engine.fixed_rows import FixedRows, rounded_up, rows_within
from dapo_lit.engines.torch_engine.rows import Rows
from dapo_lit.recipe.engine import build_engine

LENGTHS = (2, 3, 2, 4, 40, 3, 60, 5, 2, 90, 7, 3, 1, 8, 100, 2, 2, 30)
"""Of the prompts: some are longer than all rows under way when they enter."""
UNEVEN = [
    SampleRequest(SampleKey(0, f"p{i}", 0, 0), np.random.default_rng(i).integers(4, 40, length).tolist())
    for i, length in enumerate(LENGTHS)
]


def fixed_rows(engine: TorchEngine) -> FixedRows:
    assert engine._fixed is not None
    return engine._fixed


def assert_same(found: list[Sample], expected: list[Sample]) -> None:
    """The same tokens, and log-probs up to rounding."""
    others = by_key(expected)
    assert by_key(found).keys() == others.keys()
    for sample in found:
        other = others[sample.key]
        assert sample.response_ids.tolist() == other.response_ids.tolist()
        assert sample.finished == other.finished
        np.testing.assert_allclose(sample.rollout_logprobs, other.rollout_logprobs, rtol=0, atol=2e-5)


def test_one_row_more_would_not_fit_the_cache_after_rounding():
    for tokens, slots, wanted in [
        (10_000, 100, 90),
        (10_000, 100, 48),
        (5_000, 65, 512),
        (100, 60, 8),
        (49_152, 128, 400),
    ]:
        rows, most = rows_within(tokens, slots, wanted), tokens // rounded_up(slots, 64)
        assert rows == 1 or rounded_up(rows, 8) <= most
        assert rows == wanted or rounded_up(rows + 1, 8) > most


def test_an_engine_with_that_many_rows_stays_within_the_cache():
    model = make_model(ARCHITECTURES["qwen2"])
    engine = make_engine(model, max_batch_size=rows_within(tokens=1_500, slots=120, wanted=40), cuda_graphs=True)
    list(engine.generate(UNEVEN, Sampling(20)))
    rows = fixed_rows(engine)
    token = rows._decoder.num_keys * rows._decoder.head_dim
    assert [0 < layer[0].numel() <= 1_500 * token for layer in rows._cache] == [True] * rows._decoder.num_layers


def test_sizes_are_powers_of_two_and_three_quarters_of_them():
    sizes = sorted({rounded_up(count, 8) for count in range(100)})
    assert sizes == [8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert all(rounded_up(size, 8) == size for size in sizes)
    assert all(count <= rounded_up(count, 8) <= max(8, 1.5 * count) for count in range(1, 3000))


@pytest.mark.parametrize("max_batch_size", [1, 7, 9, 20])
@pytest.mark.parametrize("name", ["qwen3", "qwen2, window of 5 in the second layer"])
def test_tokens_are_those_of_shapes_that_follow_the_batch_over_refills_and_sizes(monkeypatch, name, max_batch_size):
    """Rows enter and leave; their number and the cache's length pass several of the fixed sizes."""
    model, sampling = make_model(ARCHITECTURES[name]), Sampling(70, temperature=1.2, seed=5)
    expected = list(make_engine(model, max_batch_size=max_batch_size).generate(UNEVEN, sampling))
    shapes, decode = set(), FixedRows._decode

    def noted(rows: FixedRows) -> None:
        shapes.add((rows._rows, rows.capacity))
        decode(rows)

    monkeypatch.setattr(FixedRows, "_decode", noted)
    engine = make_engine(model, max_batch_size=max_batch_size, cuda_graphs=True)
    assert_same(list(engine.generate(UNEVEN, sampling)), expected)
    assert len({capacity for _, capacity in shapes}) >= 2
    assert {rows for rows, _ in shapes} == {1: {8}, 7: {8}, 9: {8, 12}, 20: {8, 12, 16, 24}}[max_batch_size]


def fill_with_nan(rows: FixedRows, first: int = 0) -> None:
    """What no row in use has written, from row `first` on."""
    for index in range(rows._decoder.num_layers):
        if first:
            rows._layer(index, rows.room, rows.capacity)[:, first:] = torch.nan
        else:
            rows._cache[index].fill_(torch.nan)
    rows._hidden[first:] = torch.nan
    rows._logprobs[:, first:] = torch.nan


def in_two_lots(engine: TorchEngine, requests: list[SampleRequest], first: int, sampling: Sampling) -> list[Sample]:
    """The samples of requests of which those after the `first` come when few of these are left."""
    stream, samples = engine.open(sampling), []
    stream.submit(requests[:first])
    while stream.pending > 2:
        samples += stream.step()
    stream.submit(requests[first:])
    return [*samples, *run_to_end(stream)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_memory_that_held_nan_nor_rows_that_compute_nan_reach_a_sample(monkeypatch, dtype):
    """Buffers are filled with NaN between two streams, and in every step those of the places without a row."""
    model, sampling = make_model(ARCHITECTURES["mistral, window of 6"]).to(dtype), Sampling(40, seed=2)
    engine = make_engine(model, max_batch_size=7, dtype=dtype, cuda_graphs=True)
    expected = in_two_lots(engine, UNEVEN, 9, sampling)
    with torch.inference_mode():
        fill_with_nan(fixed_rows(engine))
    sample, filled = FixedRows.sample, set()

    def dirty(rows: FixedRows, uniforms: np.ndarray, slot: int, settings: Sampling) -> np.ndarray:
        fill_with_nan(rows, first=len(uniforms))
        filled.add(len(uniforms))
        return sample(rows, uniforms, slot, settings)

    monkeypatch.setattr(FixedRows, "sample", dirty)
    assert in_two_lots(engine, UNEVEN, 9, sampling) == expected
    assert min(filled) < 4 < max(filled) == 7


def test_what_an_engine_sampled_before_changes_no_bit():
    """A resumed run's engine has seen less than that of the run that went on."""
    model, sampling = make_model(ARCHITECTURES["qwen2"]), Sampling(30, seed=9)
    fresh, used = (make_engine(model, max_batch_size=18, cuda_graphs=True) for _ in range(2))
    list(used.generate(UNEVEN, Sampling(80, seed=1)))
    shorter = sorted(UNEVEN, key=lambda request: -len(request.prompt_ids))
    assert in_two_lots(used, shorter, 4, sampling) == in_two_lots(fresh, shorter, 4, sampling)


def test_at_rest_small_buffers_stay_and_large_ones_are_freed(monkeypatch):
    model = make_model(ARCHITECTURES["qwen2"])
    engine = make_engine(model, max_batch_size=9, cuda_graphs=True)
    expected = list(engine.generate(UNEVEN, Sampling(30)))
    rows = fixed_rows(engine)
    held = sum(flat.nbytes for flat in rows._cache) + 20 * 12 * model.config.vocab_size
    kept = rows._cache[0]
    monkeypatch.setattr(engines, "KEPT_BYTES", held)
    engine.rest()
    assert rows._cache[0] is kept
    monkeypatch.setattr(engines, "KEPT_BYTES", held - 1)
    engine.rest()
    assert rows._cache[0].numel() == rows._ids.numel() == 0
    assert list(engine.generate(UNEVEN, Sampling(30))) == expected


def test_of_two_streams_only_the_last_one_goes_on():
    engine = make_engine(make_model(ARCHITECTURES["llama"]), cuda_graphs=True)
    first = engine.generate(make_requests(4, 4), Sampling(80))
    next(first)
    second = engine.generate(make_requests(2, 2), Sampling(10))
    with pytest.raises(RuntimeError, match="another stream was opened"):
        list(first)
    assert len(list(second)) == 4


@pytest.mark.parametrize(
    ("options", "on_gpu", "fixed"),
    [
        ((), False, False),
        ((), True, True),
        (("rollout.overlap=true",), True, False),
        (("rollout.torch.cuda_graphs=true", "rollout.overlap=true"), True, True),
        (("rollout.torch.cuda_graphs=true",), False, True),
        (("rollout.torch.cuda_graphs=false",), True, False),
    ],
)
def test_auto_captures_on_a_gpu_unless_training_uses_it_meanwhile(compose, monkeypatch, options, on_gpu, fixed):
    monkeypatch.setattr(cuda_graphs, "can_capture", lambda device: on_gpu)
    monkeypatch.setattr("dapo_lit.recipe.engine.eos_ids", lambda model, tokenizer: (EOS,))
    model = make_model(ARCHITECTURES["llama"])
    engine = build_engine(model, None, compose(*options).rollout)
    engine.sync_weights(model.state_dict().items(), 0)
    assert isinstance(engine.open(Sampling(2))._batch._rows, FixedRows if fixed else Rows)
