"""The benchmarks at a size of seconds: each writes its figures and its table. No measured speed is judged."""

import importlib
import json
import multiprocessing
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


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


def passes_over(parts: dict) -> float:
    """Products of the updates over those of sampling."""
    return parts["updates"]["work"]["products"][0] / parts["sampling"]["work"]["products"][0]


# name: what its record must say
HOLDS = {
    "head": lambda r: all(
        max(way["hidden_error"], way["head_error"]) < 1e-5 for way in r["128"].values() if "head_error" in way
    ),
    "host": lambda r: r["paper_step_s"] == pytest.approx([
        stages_add_up(r, ("exchange", "rollout_metrics"), 82)
        + stages_add_up(r, ("staleness", "token_batch", "scoring", "credit", "updates"), 41)
    ]),
    "packing": lambda r: all(0 < max(w["gradient_error"].values()) < 1e-5 for w in r.values()),
    "sampler": lambda r: [(w["workload"], w["failed"]) for w in r] == [("fixed", {}), ("eos", {})],
    # a * s + b * s^2 with a = 3 (4 * 96^2 + 3 * 96 * 256) + 64 * 96, b = 3 * 96
    "growth": lambda r: all(r["0.3M"][str(s)]["multiply_adds"] == s * 337_920 + s**2 * 288 for s in (64, 256)),
    "step_limit": lambda r: all(0 < sum(s["seconds"].values()) < s["wall_s"] for s in r["chain_sum"])
    # of two updates the first scores its own completions: three passes, and half of one for scoring
    and passes_over(r["parts"]["chain_sum"]) == 3.5,
    # the same samples, as long as the weights differ by rounding only
    "updates": lambda r: len({turns[0][0]["generated"] for turns in r["tiny"]["turns"].values()}) == 1,
    "mismatch": lambda r: 0 < r["torch, float32"]["kl"] < 1e-9 < r["torch, bfloat16"]["kl"],
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDS)
def test_a_benchmark_writes_its_figures_and_its_table_and_what_it_compares_agrees(name, tmp_path, monkeypatch, cache):
    assert HOLDS[name](run(name, tmp_path, monkeypatch))


class Scripted:
    """A side's process whose answers are listed: seconds of a step, or what ends it; `alive` counts them."""

    alive = 0
    answers: dict[int | str, list[float | BaseException]]

    def __init__(self, main, work):
        Scripted.alive += 1
        assert Scripted.alive == 1
        self.batch = work.options.get("per_device_train_batch_size", 0)
        self.side = work.options.get("algorithm.old_logprobs", self.batch)

    def ask(self, message):
        answer = self.answers[self.side].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        times = {"seconds": answer, "wall_seconds": 2 * answer if self.batch else answer}
        return times | {"tokens": 200 if self.batch else 100, "generated": 50, "peak_bytes": 10**9}

    def close(self):
        Scripted.alive -= 1


def test_speeds_are_compared_with_the_peers_best_setting_in_the_same_turn_and_written_as_they_come(
    tmp_path, monkeypatch
):
    """Ours takes 1, 2, 2 s for 100 tokens, TRL at batch 16 6 s for 200 and then dies; at batch 8 it is slower."""
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("vs_trl")
    monkeypatch.setattr(script, "Child", Scripted)
    answers = {0: [1, 2, 2], "rollout": [1, 1, 1], 8: [4], 16: [2, 6, RuntimeError("killed for memory")]}
    monkeypatch.setattr(Scripted, "answers", answers, raising=False)
    monkeypatch.setattr(sys, "argv", ["vs_trl", "--out", str(tmp_path)])
    report = script.Report(script.parsed())
    settings = script.settings_of_trl([8, 16], float32_only=True)
    comparison = script.Comparison("tiny", script.Work((), 1), settings, report.save)
    report.comparisons.append(comparison)
    comparison.run(steps=1, warmup=0, repeats=3)
    assert Scripted.alive == 0
    found = json.loads((tmp_path / "vs_trl.json").read_text())["results"]["tiny"]
    assert len(found["turns"]["TRL, float32, batch 16"]) == 1
    assert found["failed"] == {"TRL, float32, batch 16": "killed for memory"}
    assert "| 3.00 (3.00 to 3.00) | 6.00 (6.00 to 6.00) |" in (tmp_path / "vs_trl.md").read_text()


def test_the_first_commands_are_timed_as_makefile_and_readme_have_them(monkeypatch, cache, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    first_run = importlib.import_module("first_run")
    assert first_run.first_command()[:2] == ["+experiment=dapo", "+regime=joint"]
    assert first_run.second_command() == ["-m", "+experiment=add_soft_punishment"]
    small = [
        "algorithm.num_prompts=4",
        "algorithm.minibatch_prompts=2",
        "algorithm.samples_per_prompt=2",
        "budget.steps=1",
        "replay.record=[]",
        "preflight=false",
        "task.num_heldout=2",
        "evaluation.samples=1",
    ]
    found = first_run.measured([*first_run.first_command(), *small], tmp_path)
    assert 0 < found["first_line"] <= found["first_point"] < found["whole"]
    assert 0 < found["first_line_processor"] <= found["first_point_processor"] <= found["whole_processor"]
    assert first_run.TARGETS["first"].keys() <= found.keys()


def test_the_verdict_of_the_second_command_is_that_of_its_report(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    first_run = importlib.import_module("first_run")
    report = tmp_path / "runs" / "add_soft_punishment" / "report" / "report.json"
    report.parent.mkdir(parents=True)
    registered = {"estimate": {"mean": -0.1, "low": -0.2, "high": -0.04, "n": 3}, "p": 0.25, "decided": False}
    effects = [registered | {"alpha": 0.05}, registered | {"alpha": None, "p": 0.9}]
    report.write_text(json.dumps({"effects": effects, "comparisons": [{"differences": [-0.2, 0.1, -0.2]}]}))
    expected = {"mean": -10.0, "low": -20.0, "high": -4.0, "pairs": 3, "same_sign": 2, "p": 0.25, "decided": False}
    assert first_run.verdict(tmp_path) == expected
