"""The scripts for a GPU machine, as far as a CPU can run them: what they bring along, print first and leave behind."""

import importlib
import importlib.metadata
import json
import operator
import os
import re
import subprocess
import sys
import time
import tomllib
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from simulated_loan import Draw, Loan
from small_runs import Run

from dapo_lit.engines.vllm_engine.process import FAILED
from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer
from dapo_lit_tools.planning.duration import response_lengths

ROOT = Path(__file__).parents[2]
ON_MACHINE = {
    "torch",
    "transformers",
    "lightning",
    "accelerate",
    "peft",
    "pandas",
    "pyarrow",
    "scipy",
    "sympy",
    "pytest",
}
"""What a GPU machine has, with what these need."""
UNUSED_ON_MACHINE = {"aiohttp", "matplotlib", "tree-sitter", "tree-sitter-bash", "wandb"}
"""Imported where servers, figures, shell scripts and that logger are used, which no GPU script does."""


@pytest.fixture
def script(monkeypatch):
    """A script of benchmarks/gpu, imported."""
    for folder in ("benchmarks", "benchmarks/gpu"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(package: str) -> set[str]:
    """The packages that an installed one asks for on this platform, without extras."""
    asked = map(Requirement, importlib.metadata.requires(package) or [])
    return {canonical(r.name) for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})}


def closure(packages: set[str]) -> set[str]:
    found, waiting = set[str](), {canonical(name) for name in packages}
    while waiting:
        name = waiting.pop()
        found.add(name)
        try:
            waiting |= needs(name) - found
        except importlib.metadata.PackageNotFoundError:  # CUDA's libraries of a torch for GPUs
            continue
    return found


def test_the_wheels_for_a_gpu_machine_lack_nothing_that_they_need_and_are_pinned():
    lines = (ROOT / "benchmarks/gpu/wheels.txt").read_text().splitlines()
    brought = {canonical(line) for line in lines if not line.startswith("#")}
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    own = {canonical(Requirement(line).name) for line in asked} - UNUSED_ON_MACHINE
    assert closure(own | brought) - closure(ON_MACHINE) <= brought
    locks = [ROOT / f"requirements{name}.lock" for name in ("", ".peers")]
    pinned = {canonical(line.partition("==")[0]) for lock in locks for line in lock.read_text().splitlines()}
    assert brought <= pinned


def test_the_suite_does_not_see_a_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()


def test_a_row_is_printed_and_written_as_it_comes(script, tmp_path, capsys):
    part: ModuleType = script("part")
    args = Namespace(out=tmp_path, tiny=True, threads=1, clock="wall")
    report = part.Report("some_part", args, ["case", "ms"])
    for number, name in enumerate(("first", "second"), start=1):
        report.add(name, {"ms": number}, f"{number}.0")
        assert list(json.loads((tmp_path / "some_part.json").read_text())["results"].values())[-1] == {"ms": number}
        assert f"| {name} | {number}.0 |" in (tmp_path / "some_part.md").read_text()
        assert capsys.readouterr().out.endswith(f"{name} | {number}.0\n")


def test_the_head_is_measured_first_with_the_rows_of_a_chunk_that_training_takes(script, tmp_path, monkeypatch):
    part_c = script("c_head")
    monkeypatch.setattr(sys, "argv", ["c_head", "--tiny", "--repeats", "1", "--out", str(tmp_path)])
    part_c.main()
    rows = list(json.loads((tmp_path / "c_head.json").read_text())["results"])
    assert rows[0].endswith("(chosen), compiled")  # as a run of 100 steps has it
    assert rows[1].endswith("(chosen)")
    assert rows[-1] == "256, 27"  # known to be slow


def test_the_reference_of_part_b_takes_one_head_at_a_time_and_is_the_whole_one(script):
    part_b = script("b_attention")
    draw = torch.Generator(device="cpu").manual_seed(0)
    query, key, value, slope = (torch.randn(9, n, 4, generator=draw, dtype=torch.float64) for n in (6, 2, 2, 6))
    packed, widest = part_b.layout([5, 4]), []

    def both(inputs, grad):
        widest.append(inputs[0].shape[1])
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = part_b.run(*leaves, packed, None)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    whole = both([query, key, value], slope)
    for found, expected in zip(part_b.by_head(both, [query, key, value], slope), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert widest == [6, *[1] * 6]


def test_the_trainers_peak_is_that_of_a_step_with_optimiser_states(script, tmp_path, monkeypatch):
    part_d, made, with_states = script("d_trainer"), [], []

    class Recorded(torch.optim.AdamW):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(torch.optim, "AdamW", Recorded)
    monkeypatch.setattr(part_d, "peak_bytes", lambda step: with_states.append(bool(made[-1].state)))
    monkeypatch.setattr(sys, "argv", ["d_trainer", "--tiny", "--cases", "0", "--out", str(tmp_path)])
    part_d.main()
    assert with_states == [True]


def test_the_probe_whole_steps_and_trl_come_first_and_fit_into_a_loan_one_after_the_other(script):
    campaign = script("campaign")
    assert list(campaign.CAPS) == list(campaign.PARTS)
    first = ("probe", "product", "step", "trl", "step_fast", "step_1_5b")
    assert tuple(campaign.CAPS)[:6] == first
    assert campaign.START_S + sum(campaign.CAPS[part] for part in first) <= campaign.LOAN_S
    assert max(campaign.CAPS.values()) <= campaign.COMMAND_S < 590  # of `make gpu`
    for file in (ROOT / "benchmarks/gpu").glob("*.py"):
        read = [line for line in file.read_text().splitlines() if re.search(r"[\"'/]experiments/", line)]
        assert read == [], file


def test_what_is_sent_for_a_dry_run_is_what_a_gpu_machine_is_given():
    [sent] = re.findall(r"^SENT := (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert "experiments" not in sent
    assert all((ROOT / path).exists() for path in sent.split())
    assert "gpu-dry" in (ROOT / ".ci/run").read_text()


def test_a_part_over_its_cap_is_ended_a_part_that_fails_is_a_row_and_the_next_one_runs(script, tmp_path, capsys):
    campaign = script("campaign")
    run = campaign.Campaign(tmp_path, tiny=True, forecasts={"late": {"sleeper": {"code": 0, "pace": 2.0}}})

    def late(found, folder):
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        found.add("sleeper", {"code": found.wait({"x": sleeper})["x"], "pace": 3.5})
        assert sleeper.poll() is not None

    def broken(found, folder):
        raise ValueError("no such shape")

    run.run("late", late, 0.3)
    run.run("broken", broken, 5.0)
    run.run("last", lambda found, folder: found.add("case", {"result": "works"}), 5.0)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["part"] for row in rows if row["case"] == "took"] == ["late", "broken", "last"]
    rows = [row for row in rows if row["case"] != "took"]
    assert [row["part"] for row in rows] == ["late", "broken", "last"]
    assert rows[0]["measured"] == {"code": None, "pace": 3.5}
    assert rows[0]["forecast"]["pace"] == 2.0
    assert "no such shape" in rows[1]["measured"]["error"]
    assert "late | sleeper | code None (forecast 0), pace 3.5 (forecast 2)" in capsys.readouterr().out
    assert [campaign.fails(row["measured"]) for row in rows[1:]] == [True, False]
    assert campaign.fails({"result": campaign.NOT_INSTALLED.format("trl")})


def test_a_second_call_goes_on_with_the_part_that_did_not_fit_into_the_first(script, tmp_path, capsys):
    campaign, ran = script("campaign"), []
    parts = {name: (lambda found, folder, name=name: ran.append(name)) for name in ("one", "two", "three")}
    caps = {"one": 5.0, "two": 50.0, "three": 5.0}
    first = campaign.Campaign(tmp_path, tiny=True, forecasts={})
    first.run_all(parts, caps, seconds=20.0)
    assert ran == ["one"]  # not three, which would fit: it is worth less than two
    assert "two takes up to 50 s" in capsys.readouterr().out
    second = campaign.Campaign(tmp_path, tiny=True, forecasts={})
    assert second.ended_parts() == {"one"}
    second.run_all({name: parts[name] for name in parts if name not in second.ended_parts()}, caps, seconds=100.0)
    assert ran == ["one", "two", "three"]


def test_what_a_part_that_is_ended_has_started_ends_with_it(script, tmp_path):
    campaign, runs = script("campaign"), script("runs")
    waits = (
        "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    program = ("-c", f"{waits}.pid, flush=True); time.sleep(60)")
    run = campaign.Campaign(tmp_path / "out", tiny=True, forecasts={})
    run.ends = campaign.time.monotonic() + 5.0
    process = runs.begin(tmp_path / "hangs", program=program)
    while not (log := (tmp_path / "hangs/log.txt").read_text()):
        assert process.poll() is None
    assert run.wait({"hangs": process}) == {"hangs": None}
    state, until = Path(f"/proc/{int(log)}/stat"), time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


WORKS, CRASHES, CAP, MEMORY = (0, 3, ""), (1, 0, "illegal memory access"), (None, 0, ""), (1, 0, "CUDA out of memory")
RESTARTED = (0, 3, f"{FAILED} (ended by SIGSEGV); it is started again without CUDA graphs")
"""Exit code, steps that were made, last line of the log."""
PLAIN, NO_GRAPHS, GRAPHS, FAST = (  # graphs, compiled
    (False, False), (False, True), (True, False), (True, True)
)  # fmt: skip


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param([WORKS] * 3, [PLAIN, FAST, GRAPHS], id="all work"),
        pytest.param([WORKS, CRASHES, WORKS, WORKS], [PLAIN, FAST, NO_GRAPHS, PLAIN], id="graphs crash"),
        pytest.param([WORKS, RESTARTED, WORKS], [PLAIN, FAST, PLAIN], id="an engine with graphs is started again"),
        pytest.param([CAP, CAP, CAP], [PLAIN, FAST, PLAIN], id="all end at their caps"),
        pytest.param([CAP, WORKS, WORKS], [PLAIN, FAST, GRAPHS], id="the first ends at its cap"),
        pytest.param([WORKS, WORKS, CRASHES, WORKS], [PLAIN, FAST, GRAPHS, PLAIN], id="graphs crash at 1.5B"),
        pytest.param([WORKS, CRASHES, CRASHES, WORKS], [PLAIN, FAST, NO_GRAPHS, PLAIN], id="0.5B crashes compiled too"),
        pytest.param([CRASHES, WORKS, WORKS], [PLAIN, FAST, GRAPHS], id="nothing is left to change in the first"),
        pytest.param([MEMORY, WORKS, MEMORY, WORKS, WORKS], [PLAIN, PLAIN, FAST, FAST, GRAPHS], id="memory"),
    ],
)
def test_only_a_crash_takes_graphs_or_compiled_code_away_and_then_the_run_is_made_again(
    script, tmp_path, monkeypatch, outcomes, expected
):
    campaign, begun, left = script("campaign"), [], list(outcomes)

    def begin(folder, *overrides, **_):
        of = dict(override.partition("=")[::2] for override in overrides)
        graphs, compiles = campaign.NO_GRAPHS not in overrides, of["trainer.compile"] == "true"
        begun.append((graphs, compiles, int(of["trainer.micro_batch_tokens"])))
        code, steps, log = left.pop(0)
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(f"{log}\n")
        (folder / "stages.json").write_text('{"engine": 7.5}')
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n}) + "\n" for n in range(steps + 1)))
        wait = 60 if code is None else 0
        return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({wait}); raise SystemExit({code})"])

    monkeypatch.setattr(campaign, "begin", begin)
    monkeypatch.setattr(campaign, "device", lambda: "cpu")
    monkeypatch.setattr(campaign, "written", lambda *_: tmp_path)
    forecasts = json.loads(campaign.FORECASTS.read_text())
    parts = {name: campaign.PARTS[name] for name in ("step", "step_fast", "step_1_5b")}
    for name, part in parts.items():  # each in a call of its own
        run = campaign.Campaign(tmp_path / "out", tiny=False, forecasts=forecasts)
        run.run_all({name: part}, dict.fromkeys(parts, 5.0 if CAP not in outcomes else 2.0), seconds=100.0)
    assert [way for *way, _ in begun] == [list(way) for way in expected]
    ended = [row for row in run.rows if "halvings" in row["measured"]]
    assert all(row["measured"]["engine"] == 7.5 for row in ended)
    sizes = {
        size: forecasts[part][f"{size}, step 2"]["micro_batch_tokens"] for part, size in campaign.STEP_PARTS.items()
    }
    for (*_, tokens), row in zip(begun, ended, strict=True):
        assert tokens == sizes[row["measured"]["size"]] / 2 ** row["measured"]["halvings"]
    halvings = [row["measured"]["halvings"] for row in ended]
    assert halvings == ([0, 1, 1, 2, 0] if MEMORY in outcomes else [0] * len(expected))


def test_at_least_two_whole_steps_are_measured_in_95_percent_of_drawn_loans(script, tmp_path, monkeypatch):
    campaign = script("campaign")
    forecasts, measured = json.loads(campaign.FORECASTS.read_text()), []
    for seed in range(10_000, 10_200):
        with monkeypatch.context() as patch:
            found = Loan(campaign, Draw.of(seed), patch).run(tmp_path / str(seed), forecasts)
        # The first step compiles and warms up.
        measured.append(sum(", step " in row["case"] and not row["case"].endswith("step 1") for row in found))
    assert max(measured) > 4
    assert sum(steps >= 2 for steps in measured) >= 0.95 * len(measured)


@pytest.mark.parametrize(
    ("found", "said", "graphs_crash"),
    [
        ({}, "did not start", False),
        ({"after_capture": None}, "not the cause", True),
        ({"after_capture": 0.33}, "not the cause", True),
        ({"after_capture": 0.008, "after_blocked_clear": None}, "incomplete", True),
        ({"after_capture": 0.008, "after_blocked_clear": 0.0}, "ended before", False),
        ({"after_capture": 0.008, "after_blocked_clear": 0.008, "after_real_clear": None}, "diagnosis is right", False),
        ({"after_capture": 0.008, "after_blocked_clear": 0.0, "after_real_clear": float("nan")}, "is right", False),
        ({"after_capture": 0.008, "after_blocked_clear": 0.008, "after_real_clear": 0.008}, "another cause", False),
    ],
)
def test_the_probe_tells_a_wrong_diagnosis_from_an_incomplete_fix(script, found, said, graphs_crash):
    words, crash = script("graph_probe").conclusion(found)
    assert said in words
    assert crash == graphs_crash


def test_the_probe_writes_the_phase_that_it_is_in_before_that_can_end_the_process(script):
    probe, written = script("graph_probe"), []

    def crashes() -> None:
        raise RuntimeError("illegal memory access")

    phases = {probe.CAPTURED: lambda: None, probe.BLOCKED: lambda: None, probe.FREED: crashes}
    with pytest.raises(RuntimeError):
        probe.measured(phases, lambda: 0.01, written.append)
    assert written[-1] == {probe.CAPTURED: 0.01, probe.BLOCKED: 0.01, probe.FREED: None}


def test_a_run_writes_the_seconds_of_each_stage_of_its_start_as_it_ends(script, compose, tmp_path, monkeypatch):
    staged = script("staged_run")
    from dapo_lit.preflight import training

    at = tmp_path / "stages.json"
    for owner, name in (
        (staged.RunComponents, "policy"), (staged.RunComponents, "engine"), (training, "check_run"),
        (staged.EngineWeights, "_probe"), (staged.DAPOModule, "make_updates"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, vars(owner)[name])  # restored after the test
    seen = []

    def main() -> None:
        run = Run(compose("budget.steps=1", "preflight=true"))
        with run.parts.verifier:
            training.check_run(run.parts)
            seen.append(json.loads(at.read_text()))
            run.fit()

    monkeypatch.setattr(staged.dapo_lit.train, "main", main)
    monkeypatch.chdir(tmp_path)
    staged.main()
    assert {"import", "policy", "checks", "engine"} == set(seen[0])
    assert {*seen[0], "probe", "compilation"} == set(json.loads(at.read_text()))


def test_every_part_of_the_campaign_has_a_forecast_and_those_of_time_are_of_the_model_as_it_is(script):
    campaign, expected = script("campaign"), script("forecasts_of_campaign")
    known = json.loads(campaign.FORECASTS.read_text())
    assert set(known) == set(campaign.PARTS)
    assert all(any(case.values()) for part in known.values() for case in part.values())
    assert known["trainer"] == expected.of_trainer()
    assert known["head"] == expected.of_head()
    assert known["product"]["bfloat16, 8,192³"]["tflops"] == expected.PRODUCT_TFLOPS


def test_every_whole_step_of_the_campaign_has_a_forecast_and_the_phases_make_its_rate(script):
    campaign, expected = script("campaign"), script("forecasts_of_campaign")
    known = json.loads(campaign.FORECASTS.read_text())
    assert list(dict.fromkeys(campaign.STEP_PARTS.values())) == list(campaign.SIZES)
    for part, size in campaign.STEP_PARTS.items():
        # Step 1 warms up, so what is forecast is step 2, which there is.
        assert re.search(r"budget\.steps=[23]", campaign.SIZES[size][0])
        of = known[part][f"{size}, step 2"]
        seconds = sum(of[key] for key in ("generate_s", "score_s", "train_s", "sync_s"))
        assert of["tokens_per_s"] == pytest.approx(campaign.work_of(size).responses / seconds, rel=0.01)
        measured = {"product_tflops": expected.PRODUCT_TFLOPS}
        times = dict.fromkeys(("time/generate_s", "time/score_s", "time/sync_s", "perf/tokens_per_s"), 0.0)
        row = times | {"time/train_s": of["train_s"], "memory/peak_gb": 0.0, "perf/recompiles": 0}
        row |= {"rollout/length_mean": expected.MEAN_TOKENS, "rollout/length_cv": script("whole_step").LENGTH_CV}
        assert of["mfu"] == pytest.approx(campaign.of_step(row, size, measured)["mfu"], rel=0.01)
        assert of["peak_gb"] < 80


def test_a_random_policy_has_a_tokenizer_of_its_size_that_reads_the_problems(script, tmp_path):
    random_policy = script("random_policy")
    random_policy.write(tmp_path / "tiny", "tiny", "float32", number=20)
    model, tokenizer = load_model(tmp_path / "tiny/policy"), load_tokenizer(tmp_path / "tiny/policy")
    assert len(tokenizer) == model.config.vocab_size == random_policy.TINY["vocab_size"]
    rows = [json.loads(line) for line in (tmp_path / "tiny/problems.jsonl").read_text().splitlines()]
    lengths = [len(tokenizer(row["problem"])["input_ids"]) for row in rows]
    assert len({row["problem"] for row in rows}) == 20
    assert 30 < min(lengths) <= max(lengths) < 128
    assert tokenizer.decode(tokenizer(rows[0]["problem"])["input_ids"]) == rows[0]["problem"]
    assert len(random_policy.tokenizer_of([row["problem"] for row in rows], 151_936)) == 151_936
    ends = eos_ids(model, tokenizer)
    assert len(ends) >= len(tokenizer) / random_policy.LIMIT_TOKENS  # so that lengths differ
    assert not set(ends) & {token for row in rows for token in tokenizer(row["problem"])["input_ids"]}


def test_the_forecast_lengths_are_those_that_random_weights_give(script):
    whole_step = script("whole_step")
    ends = 1 / whole_step.LIMIT_TOKENS
    lengths = [min(n, whole_step.LIMIT_TOKENS) for n in range(1, 20_000)]
    shares = [ends * (1 - ends) ** (n - 1) for n in range(1, 20_000)]
    mean = sum(map(operator.mul, lengths, shares))
    spread = sum(share * (length - mean) ** 2 for length, share in zip(lengths, shares, strict=True)) ** 0.5
    assert pytest.approx(mean, rel=0.01) == whole_step.MEAN_TOKENS
    assert pytest.approx(spread / mean, rel=0.01) == whole_step.LENGTH_CV
    workload = SimpleNamespace(mean_response_tokens=mean, length_spread=whole_step.LENGTH_SPREAD)
    planned = np.array(response_lengths(workload, whole_step.LIMIT_TOKENS, total=512)[:-1])
    assert planned.std() / planned.mean() == pytest.approx(whole_step.LENGTH_CV, rel=0.03)
