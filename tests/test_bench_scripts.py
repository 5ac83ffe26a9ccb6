"""The benchmarks at a size of seconds: each writes its figures and its table. No measured speed is judged."""

import importlib
import json
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import SMALL, run_cli

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


def stages_add_up(found: dict, stages: tuple[str, ...], per_million: int) -> float:
    return per_million * sum(found["seconds_per_million"][stage] for stage in stages)


# name: what its record must say
HOLDS = {
    "head": lambda r: all(max(way["hidden_error"], way["head_error"]) < 1e-5 for way in r["128"].values()),
    "host": lambda r: r["paper_step_s"] == pytest.approx([
        stages_add_up(r, ("exchange", "rollout_metrics"), 82)
        + stages_add_up(r, ("staleness", "token_batch", "scoring", "credit", "updates"), 41)
    ]),
    "packing": lambda r: all(0 < max(w["gradient_error"].values()) < 1e-5 for w in r.values()),
    "sampler": lambda r: [(w["workload"], w["failed"]) for w in r] == [("fixed", {}), ("eos", {})],
    # a * s + b * s^2 with a = 3 (4 * 96^2 + 3 * 96 * 256) + 64 * 96, b = 3 * 96
    "growth": lambda r: all(r["0.3M"][str(s)]["multiply_adds"] == s * 337_920 + s**2 * 288 for s in (64, 256)),
    "step_limit": lambda r: all(0 < sum(s["seconds"].values()) < s["wall_s"] for s in r["chain_sum"]),
    "mismatch": lambda r: 0 < r["torch, float32"]["kl"] < 1e-9 < r["torch, bfloat16"]["kl"],
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDS)
def test_a_benchmark_writes_its_figures_and_its_table_and_what_it_compares_agrees(name, tmp_path, monkeypatch, cache):
    assert HOLDS[name](run(name, tmp_path, monkeypatch))


def test_the_benchmark_of_the_algorithms_writes_what_a_run_came_to(tmp_path, cache, monkeypatch):
    small = [option for option in SMALL if not option.startswith(("budget", "logger"))]
    small.append("algorithm.samples_per_prompt=32")  # of so many some are right: a run that learns nothing is an error
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["algorithms", "--algorithms", "gspo", "--steps", "1", *small])
    benchmark = importlib.import_module("algorithms")
    forked = SimpleNamespace(run=lambda command, **options: run_cli(*command[3:], cwd=tmp_path))
    monkeypatch.setattr(benchmark, "subprocess", forked)
    benchmark.main()
    results = json.loads((tmp_path / "algorithms.json").read_text())["results"]
    assert [(r["algorithm"], r["steps"]) for r in results] == [("gspo", 1)]
    assert all(0 <= r["accuracy_after"] <= 1 and r["tokens_generated"] > 0 for r in results)


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
