"""The benchmarks at a size of seconds: each writes its figures and its table. No figure is judged."""

import importlib
import json
import multiprocessing
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict:
    """Runs a script's main; its record."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [name, "--tiny", "--out", str(folder), *options])
    spares_imports(monkeypatch)
    importlib.import_module(name).main()
    assert (folder / f"{name}.md").read_text().startswith("|")
    record = json.loads((folder / f"{name}.json").read_text())
    assert record["versions"]["torch"]
    assert record["machine"]["threads"] == 1
    assert record["command"] == [f"benchmarks/{name}.py", "--tiny", *options]
    return record["results"]


def spares_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes are forked from this one instead of started anew: their imports take longer than they do."""
    contexts = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: contexts("fork" if way == "spawn" else way))


def test_the_head_is_compared_with_plain_torch_and_with_float64(tmp_path, monkeypatch):
    found = run("head", tmp_path, monkeypatch)["128"]
    assert {"gradient in the forward pass", "plain torch"} <= set(found)
    for of in found.values():
        assert len(of["seconds"]) == 2
        assert of["hidden_error"] < 1e-5
        assert of["head_error"] < 1e-5


def test_the_host_is_measured_stage_by_stage_and_keeps_the_figures_of_the_layout_before(tmp_path, monkeypatch):
    (tmp_path / "host.json").write_text(
        json.dumps({"results": {"tuples": run("host", tmp_path, monkeypatch)["arrays"]}})
    )
    before, after = run("host", tmp_path, monkeypatch).values()
    assert before["checks"] == after["checks"]
    assert after["bytes_a_token"]["records"] > 8
    assert after["paper_step_s"] == pytest.approx(
        82 * sum(after["seconds_per_million"][stage] for stage in ("exchange", "rollout_metrics"))
        + 41 * sum(after["seconds_per_million"][stage] for stage in ("staleness", "token_batch", "micro-batches"))
    )


def test_every_way_to_pack_gives_the_gradient_of_the_padded_batches(tmp_path, monkeypatch):
    for of in run("packing", tmp_path, monkeypatch).values():
        assert set(of["tokens_per_s"]) == set(of["gradient_error"])
        assert max(of["gradient_error"].values()) < 1e-5


def test_the_samplers_run_both_workloads(tmp_path, monkeypatch):
    fixed, eos = run("sampler", tmp_path, monkeypatch)
    assert (fixed["workload"], eos["workload"]) == ("fixed", "eos")
    for of in (fixed, eos):
        assert {"dapo_lit", "generate"} <= set(of["tokens_per_s"])
        assert of["failed"] == {}
    assert fixed["products"] > 0


def test_the_multiply_adds_grow_as_a_response_of_four_times_the_tokens_says(tmp_path, monkeypatch):
    found = run("growth", tmp_path, monkeypatch)["0.3M"]
    # a * s + b * s^2 with a = 3 (4 * 96^2 + 3 * 96 * 256) + 64 * 96, b = 3 * 96
    assert found["64"]["multiply_adds"] == 64 * 337_920 + 64**2 * 288
    assert found["256"]["multiply_adds"] == 256 * 337_920 + 256**2 * 288


def test_a_step_is_split_into_phases_that_add_up_to_less_than_all_of_it(tmp_path, monkeypatch, cache):
    steps = run("step_limit", tmp_path, monkeypatch)["chain_sum"]
    assert len(steps) == 2
    for step in steps:
        assert set(step["seconds"]) == {"generate", "verify", "score", "train", "sync"}
        assert sum(step["seconds"].values()) < step["wall_s"]


def test_the_mismatch_is_rounding_in_float32_and_more_in_bfloat16(tmp_path, monkeypatch, cache):
    found = run("mismatch", tmp_path, monkeypatch)
    assert 0 < found["torch, float32"]["kl"] < 1e-9
    assert found["torch, bfloat16"]["kl"] > 1e-9


def test_what_an_absent_peer_needs_is_skipped_with_a_clear_line(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("vs_trl")
    monkeypatch.setattr(script, "installed", lambda name: False)
    monkeypatch.setattr(sys, "argv", ["vs_trl", "--tiny"])
    script.main()
    assert capsys.readouterr().out.startswith("vs_trl: skipped, TRL is not installed; `make bench`")


def test_ranks_that_stream_or_sample_in_rounds_accept_the_same_groups(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    script, engines = importlib.import_module("rank_streams"), importlib.import_module("dynamic_sampling")
    work = engines.workload(0, keep_rate=0.5, num_groups=90, samples=2)
    accepted, ticks = [], []
    for way in (script.in_rounds, script.as_stream):
        admission = script.Admission(script.CollectionRules(10, max_rounds=9), script.KeepRate(10, 20))
        made = [engines.Engine(work, slots=4) for _ in range(3)]
        way(work, admission, made)
        accepted.append(admission.accepted)
        ticks.append(max(engine.clock for engine in made))
    assert accepted == [work.mixed.nonzero()[0][:10].tolist()] * 2
    assert ticks[1] < ticks[0]
