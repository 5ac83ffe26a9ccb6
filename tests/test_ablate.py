"""One command ablates a technique on a model folder and a file of problems."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import run_cli
from jsonschema import Draft202012Validator

import dapo_lit
from dapo_lit.ablate import agreed, parse_arguments
from dapo_lit.build.components import RunComponents
from dapo_lit.cli.command import compose

SUMS = ((1, 2), (2, 2), (3, 1), (4, 3))
SETTINGS = (
    "task.max_prompt_tokens=8", "task.max_response_tokens=4", "algorithm.num_prompts=4",
    "algorithm.minibatch_prompts=2", "algorithm.optimizer.lr=1e-2", "budget.steps=2", "study.until=null",
    "study.seeds=[0,1]", "study.underpowered=true", "evaluation.every=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablate")
    (folder / "sums.csv").write_text("Query,target\n" + "".join(f"{a}+{b}=,{a + b}\n" for a, b in SUMS))
    return folder, ("--model", str(RunComponents(compose("+experiment=four_sums")).policy_folder), "--data", "sums.csv")


def ablate(folder, *arguments):
    home, model_and_data = folder
    return run_cli("clip_higher", *model_and_data, *SETTINGS, *arguments, cwd=home, module="dapo_lit.ablate")


def test_it_finds_columns_probes_and_runs_the_study_which_the_same_command_continues(folder):
    done = ablate(folder)
    assert done.returncode == 0, done.stderr
    assert "problem from `Query`, answer from `target`" in done.stdout
    assert re.search(r"^  step 3/3  .*eta", done.stdout, re.MULTILINE)  # of the probe
    study = folder[0] / "runs" / "ablate_clip_higher_sums"
    plan = json.loads((study / "study.json").read_text())[0]["plan"]
    assert (plan["reference"], plan["metric"]) == ("dapo-clip_higher", "rollout/accuracy")
    assert {run.parent.name for run in study.glob("*/seed_*/DONE.json")} == {"seed_0", "seed_1"}
    assert len([*study.glob("dapo*/seed_*/DONE.json")]) == 4
    before = {file: file.stat().st_mtime_ns for file in (folder[0] / "runs").rglob("metrics.jsonl")}
    assert ablate(folder).returncode == 0
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_plan_says_what_a_study_takes_and_starts_none(folder):
    done = ablate(folder, "study_name=planned", "--plan")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  2 pairs: about .* minutes", done.stdout, re.MULTILINE)
    assert "Nothing was started. To start it:\npython" in done.stdout
    assert not (folder[0] / "runs" / "planned").exists()


@pytest.mark.parametrize(("typed", "starts"), [("y\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_on_a_terminal_it_asks_before_hours_begin(monkeypatch, typed, starts):
    assert agreed()  # no terminal: nobody could answer
    for name, stream in (("stdin", io.StringIO(typed)), ("stdout", io.StringIO())):
        stream.isatty = lambda: True
        monkeypatch.setattr(f"dapo_lit.ablate.sys.{name}", stream)
    assert agreed() is starts


def test_a_technique_that_cannot_act_ends_the_command_before_a_study(folder):
    done = ablate(folder, "algorithm.optimizer.lr=1e-9", "study_name=still")
    assert done.returncode == 2
    assert done.stdout.count("\nprobe ") == 4  # with 1, 2, 4 and 8 times the epochs
    assert not (folder[0] / "runs" / "still").exists()


def test_problems_that_the_policy_never_solves_end_the_command_with_one_of_its_responses(folder):
    file = folder[0] / "hard.csv"
    file.write_text("Query,target\n1+2=,1000001\n2+2=,1000002\n3+1=,1000003\n4+3=,1000004\n")
    done = ablate(folder, "--data", "hard.csv", "study_name=hard")
    assert done.returncode == 2
    assert "One response" in done.stderr
    assert not (folder[0] / "runs" / "hard").exists()


def test_a_budget_chooses_the_design_and_says_what_it_will_see(folder):
    home, model_and_data = folder
    keys = [key for key in SETTINGS if not key.startswith("study.")]

    def planned(*arguments: str):
        return run_cli("all", *model_and_data, *keys, "study.pilot=true", "study_name=all", "--plan", *arguments,
                       cwd=home, module="dapo_lit.ablate")  # fmt: skip

    done = planned("--budget", "100h")
    assert done.returncode == 0, done.stderr
    assert "all 32 combinations of the five techniques: 384 runs of 2 steps" in done.stdout
    assert re.search(r"can see, with 12 seeds, effects of [\d.]+ points of accuracy \([\d.]+ to [\d.]+\)", done.stdout)
    assert "overlong filtering: " in done.stdout
    started = done.stdout.split("To start it:\n")[1].strip()
    overrides = shlex.split(started)[4:]
    study = compose(*overrides, "study.arm=dapo").own_study
    assert (study.arms, study.reference, study.until) == (("cube",), "naive_grpo", None)
    assert study.seeds == tuple(range(12))
    assert study.families == {"main effects": 0.025, "interactions": 0.025}
    done = planned("--budget", "0.0001")
    assert done.returncode == 2
    assert "6 seeds of the smallest design" in done.stderr
    done = planned("--json", "true")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    schema = json.loads((Path(dapo_lit.__file__).parent / "schemas/ablate.json").read_text())
    Draft202012Validator(schema).validate(plan)
    assert (plan["technique"], plan["looks"], plan["costs"][0]["pairs"]) == ("all", [6], 6)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["clip_higher", "--budget", "2h"], "--budget"), (["all", "--budget", "soon"], "not a time")],
)
def test_a_budget_is_a_time_and_one_of_all_techniques(arguments, part, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments([*arguments, "--model", "m", "--data", "d"])
    assert ended.value.code == 2
    assert part in capsys.readouterr().err
