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


@pytest.mark.parametrize("name", ["head", "host", "packing", "sampler", "growth", "step_limit", "mismatch"])
def test_a_benchmark_writes_its_figures_and_its_table(name, tmp_path, monkeypatch, cache):
    assert run(name, tmp_path, monkeypatch)


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
