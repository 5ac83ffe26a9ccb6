"""The torch sampler's CUDA graphs, recorded on the CPU: what is captured must be right when it is repeated."""

import pytest
import torch
from recorded_graphs import RecordedGraph, capture, graphs
from test_fixed_rows import UNEVEN, assert_same, fixed_rows
from test_torch_engine import ARCHITECTURES, assert_logprobs_are_forced, make_engine, make_model, make_requests

from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.torch_engine.rows import Rows

__all__ = ["graphs"]


def test_the_recording_repeats_in_place_and_refuses_what_a_gpu_refuses(graphs):
    total, weight = torch.zeros(2), torch.tensor([1.0, 2.0])
    graph = RecordedGraph()
    with capture(graph, pool=object(), capture_error_mode="thread_local"):
        total += 2 * weight
    assert total.tolist() == [0, 0]  # a capture runs nothing
    weight[0] = 3
    graph.replay()
    graph.replay()
    assert total.tolist() == [12, 8]
    del weight
    with pytest.raises(AssertionError, match="memory that was freed"):
        graph.replay()
    with (
        pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        capture(RecordedGraph(), pool=object(), capture_error_mode="thread_local"),
    ):
        bool(total[0] > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama, all biases", "qwen3", "qwen2, window of 5 in the second layer"])
def test_replayed_steps_sample_bit_for_bit_what_steps_launched_one_by_one_do(graphs, monkeypatch, name, dtype):
    """Over refills, several sizes and two streams, of which the second one has almost nothing left to capture."""
    model = make_model(ARCHITECTURES[name]).to(dtype)
    captured = make_engine(model, max_batch_size=9, dtype=dtype, cuda_graphs=True)
    with monkeypatch.context() as patch:
        patch.setattr("dapo_lit.engines.torch_engine.cuda_graphs.can_capture", lambda device: False)
        launched = make_engine(model, max_batch_size=9, dtype=dtype, cuda_graphs=True)
    for seed, fewest in ((5, 100), (6, 200)):
        sampling = Sampling(70, temperature=1.2, seed=seed)
        assert list(captured.generate(UNEVEN, sampling)) == list(launched.generate(UNEVEN, sampling))
        assert sum(graph.replays for graph in graphs) > fewest
    assert len(graphs) < 20


def test_log_probs_of_replayed_steps_are_those_of_transformers(graphs):
    model, requests = make_model(ARCHITECTURES["qwen2"], tied=True), make_requests(6, 3)
    engine = make_engine(model, max_batch_size=10, cuda_graphs=True)
    list(engine.generate(requests, Sampling(90, temperature=1.3)))
    samples = list(engine.generate(requests, Sampling(90, temperature=1.3, seed=1)))
    assert_logprobs_are_forced(model, requests, samples, 1.3)


def test_graphs_read_the_weights_of_the_last_sync(graphs):
    old, new = (make_model(ARCHITECTURES["qwen3"], seed=seed) for seed in (0, 1))
    engine, sampling = make_engine(old, max_batch_size=9, cuda_graphs=True), Sampling(40)
    list(engine.generate(UNEVEN, sampling))
    engine.sync_weights(new.state_dict().items(), version=2)
    engine.rest()
    list(engine.generate(UNEVEN, sampling))  # the few sizes that the new responses need in addition
    count = len(graphs)
    assert_same(list(engine.generate(UNEVEN, sampling)), list(make_engine(new, version=2).generate(UNEVEN, sampling)))
    assert len(graphs) == count


def test_another_temperature_is_not_drawn_with_the_graph_of_the_first(graphs):
    model = make_model(ARCHITECTURES["llama"])
    engine, plain = make_engine(model, cuda_graphs=True), make_engine(model)
    for settings in ({}, {"temperature": 0.3}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"seed": 1}):
        sampling, requests = Sampling(30, **settings), make_requests(4, 3)
        assert_same(list(engine.generate(requests, sampling)), list(plain.generate(requests, sampling)))


def test_buffers_that_grow_or_are_freed_end_the_graphs_that_read_them(graphs):
    model = make_model(ARCHITECTURES["qwen2"])
    engine, plain = make_engine(model, cuda_graphs=True), make_engine(model)
    few, many, long = make_requests(2, 2), make_requests(7, 5), UNEVEN
    for requests in (few, many, few, long, many):
        assert_same(list(engine.generate(requests, Sampling(50))), list(plain.generate(requests, Sampling(50))))
    fixed_rows(engine).release(more_than=0)
    assert_same(list(engine.generate(few, Sampling(50))), list(plain.generate(few, Sampling(50))))


def fail(*args: object, **kwargs: object) -> None:
    raise RuntimeError("CUDA error: operation not permitted")


def test_auto_goes_on_without_graphs_where_none_can_be_captured_and_says_so_once(graphs, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "graph", fail)
    model, sampling = make_model(ARCHITECTURES["llama"]), Sampling(40)
    engine, requests = make_engine(model, cuda_graphs="auto"), make_requests(4, 3)
    expected = list(make_engine(model).generate(requests, sampling))
    for _ in range(2):
        assert_same(list(engine.generate(requests, sampling)), expected)
    assert isinstance(engine.open(sampling)._batch._rows, Rows)
    assert capsys.readouterr().out == (
        "the sampler's steps cannot be captured as CUDA graphs (CUDA error: operation not permitted); they are "
        "launched one by one, as with rollout.torch.cuda_graphs=false\n"
    )


def test_true_raises_where_none_can_be_captured_and_auto_raises_what_comes_later(graphs, monkeypatch):
    model, requests = make_model(ARCHITECTURES["llama"]), make_requests(4, 3)
    engine = make_engine(model, cuda_graphs="auto")
    list(engine.generate(requests, Sampling(40)))
    monkeypatch.setattr(RecordedGraph, "replay", fail)
    with pytest.raises(RuntimeError, match="not permitted"):
        list(engine.generate(requests, Sampling(40)))
    monkeypatch.setattr(torch.cuda, "graph", fail)
    with pytest.raises(RuntimeError, match="not permitted"):
        list(make_engine(model, cuda_graphs=True).generate(requests, Sampling(40)))
