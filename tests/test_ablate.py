"""One command ablates a technique on a model folder and a file of problems."""

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import run_cli
from jsonschema import Draft202012Validator

import dapo_lit
from ablations.techniques import DAPO
from dapo_lit.ablate import agreed, base_run, parse_arguments
from dapo_lit.build.components import RunComponents
from dapo_lit.cli.command import compose
from dapo_lit.cli.study_cost import RunCost, run_cost
from dapo_lit.rollout.dynamic_sampling import groups_in_flight

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
    assert "`Query`, answer from `target`" in done.stdout
    assert re.search(r"^  step 3/3  .*eta", done.stdout, re.MULTILINE)  # of the probe
    study = folder[0] / "runs" / "ablate_clip_higher_sums"
    plan = json.loads((study / "study.json").read_text())[0]["plan"]
    assert (plan["reference"], plan["metric"]) == ("dapo-clip_higher", "rollout/accuracy")
    assert {run.parent.name for run in study.glob("*/seed_*/DONE.json")} == {"seed_0", "seed_1"}
    assert len([*study.glob("dapo*/seed_*/DONE.json")]) == 4
    kept = json.loads((study / "estimate.json").read_text())
    rows = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in study.glob("dapo*/seed_*")]
    assert kept["used"]["runs"] == 4
    assert kept["used"]["tokens"] == sum(row["tokens_generated"] for row in rows)
    # Times of a record are in seconds: each run may lose one at either end. Start-up is counted.
    assert kept["used"]["seconds"] > sum(row["wall_s"] for row in rows) - 2 * len(rows)
    assert {arm: set(cost) for arm, cost in kept["promised"]["runs"].items()} == {
        "dapo-clip_higher": {"seconds", "tokens"}, "dapo": {"seconds", "tokens"},
    }  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    assert re.search(r"^estimate  of 4 runs: [\d,]+ tokens and \d+ s promised, [\d,]+ tokens and \d+ s used$", last)
    before = {file: file.stat().st_mtime_ns for file in (folder[0] / "runs").rglob("metrics.jsonl")}
    assert ablate(folder).returncode == 0
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_plan_says_what_a_study_takes_and_starts_none(folder):
    done = ablate(folder, "study_name=planned", "--plan")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  2 pairs: about .* minutes", done.stdout, re.MULTILINE)
    assert "Nothing was started. To start it:\npython" in done.stdout
    home, model_and_data = folder
    keys = [key for key in SETTINGS if not key.startswith("study.")]
    given = ("clip_higher", *model_and_data, *keys, "study_name=planned", "--json")  # a sequential design, as shipped
    done = run_cli(*given, "--plan", cwd=home, module="dapo_lit.ablate")
    assert done.returncode == 0, done.stderr
    plan = valid_plan(done.stdout)
    assert [row["pairs"] for row in plan["costs"]] == [plan["looks"][0], plan["looks"][-1]]
    assert plan["command"].startswith("python -m dapo_lit.train -m ")
    assert not (home / "runs" / "planned").exists()
    refused = run_cli(*given, cwd=home, module="dapo_lit.ablate")  # JSON is the answer of a plan
    assert (refused.returncode, refused.stdout) == (2, "")


def valid_plan(text: str) -> dict[str, Any]:
    """The answer, which follows the schema and has no key that the schema lacks."""
    plan = json.loads(text)
    schema = json.loads((Path(dapo_lit.__file__).parent / "schemas/ablate.json").read_text())
    Draft202012Validator(schema).validate(plan)
    assert not plan.keys() - schema["properties"].keys() - {"crc32", "engine"}
    return dict(plan)


def probe_rows(*, mixed: float, groups: int, tokens: int = 1200, generate_s: float = 6.0) -> list[dict[str, float]]:
    """Three steps of ten seconds each, of which sampling takes `generate_s`."""
    each = {
        "rollout/groups_mixed_frac": mixed, "sampling/groups_generated": groups, "time/generate_s": generate_s,
    }  # fmt: skip
    return [{"step": k, "wall_s": 10.0 * k, "tokens_generated": tokens * k} | each for k in (1, 2, 3)]


def test_an_arm_with_dynamic_sampling_is_billed_for_the_groups_that_it_discards():
    """The probe's arm keeps every group; at 50 % mixed, dynamic sampling has 158 of 64 under way (one sd of margin)."""
    config = compose("+experiment=four_sums", "algorithm.num_prompts=64", "algorithm.samples_per_prompt=4",
                     "algorithm.techniques.dynamic_sampling=false", "budget.steps=5")  # fmt: skip
    rows = probe_rows(mixed=0.5, groups=64)
    evaluated_s = 2 * config.task.num_heldout * config.evaluation.samples * 6.0 / (64 * 4)
    plain, dear = (run_cost(config, rows, 7.0, on) for on in (False, True))
    more = groups_in_flight(64, 0.5, 1.0) / 64
    assert 2.0 < more < 2.5
    assert plain == RunCost(pytest.approx(7.0 + 5 * 10.0 + evaluated_s), 5 * 1200)
    assert dear.tokens == pytest.approx(5 * 1200 * more)
    assert dear.seconds == pytest.approx(7.0 + evaluated_s + 5 * (10.0 + 6.0 * (more - 1)))  # updates take no longer


def test_a_probe_with_dynamic_sampling_bills_the_arm_without_it_for_one_round_and_evaluations_by_their_answers():
    config = compose("+experiment=four_sums", "algorithm.num_prompts=64", "algorithm.samples_per_prompt=4",
                     "algorithm.techniques.dynamic_sampling=true", "budget.steps=5")  # fmt: skip
    rows = probe_rows(mixed=0.5, groups=128)
    evaluated = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"every": 2})})
    plain = run_cost(config, rows, 0.0, False)
    assert plain.tokens == 5 * 600
    answers = config.task.num_heldout * config.evaluation.samples
    a_second = 128 * 4 / 6.0
    every = (evaluated.evaluation.every, config.evaluation.every)
    assert every == (2, 0)
    assert plain.seconds == pytest.approx(5 * 7.0 + 2 * answers / a_second)  # before and after
    assert run_cost(evaluated, rows, 0.0, False).seconds == pytest.approx(5 * 7.0 + 4 * answers / a_second)  # 2 and 4


def test_keys_of_the_study_may_follow_a_whole_run():
    """They exist once a study is chosen, which the run alone has not done."""
    run = ["+experiment=dapo", "+regime=joint", "study.max_pairs=16", "study.seeds=[3]"]
    options, own = parse_arguments(["dynamic_sampling", "--as-given", *run])
    assert base_run(options, own) == (run, DAPO)


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
    assert re.search(r"all 32 combinations .* 384 runs of 2 steps", done.stdout)
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
    assert "6 seeds of the smallest" in done.stderr
    done = planned("--json", "true")
    assert done.returncode == 0, done.stderr
    plan = valid_plan(done.stdout)
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
