"""A study from one command: every arm and seed, gaps filled, packed and held cells left alone, mistakes told first."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run_cli
from damages import resealed

from ablations.files.claim import holder
from ablations.read.packed_cells import write_packed
from ablations.read.registration import read_plan
from ablations.read.runs import StudyError, load
from dapo_lit.build.base_policy import weights_of
from dapo_lit.cli.command import compose_run, run_command
from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.cli.study_launch import prepare
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.identity import identity
from dapo_lit.runs.code_state import CODE, uncommitted
from dapo_lit.status import main as status
from dapo_lit.train import run_study, train

TINY = (
    "+experiment=four_sums", "budget.steps=2", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2",
    "evaluation.samples=2", "evaluation.every=0", "logger.progress=none", "study.seeds=[0,1]",
    "study.underpowered=true", "study.workers=1",
)  # fmt: skip
OTHER = "dapo@rollout.noise_stream=1"
STUDY = Path("runs/placebo_four_sums")


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies are tested before their code is committed."""
    monkeypatch.setattr("dapo_lit.cli.study_launch.uncommitted", list)


def train_here(*arguments: str, cwd: Path) -> int:
    """The command in this process, which spares it the imports; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["train", *arguments])
        return run_command(train, Config, "config", run_study=run_study)


def launch(*arguments: str, cwd: Path) -> int:
    return train_here("-m", "+study=placebo", *TINY, *arguments, cwd=cwd)


def started(study: Path) -> None:
    """A run of a registered study."""
    (study / "dapo" / "seed_0").mkdir(parents=True)
    (study / "dapo" / "seed_0" / "run.json").write_text("{}")


def done_at(folder: Path) -> dict[str, int]:
    return {str(file.parent.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("DONE.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache) -> Path:
    """The folder in which a study of two arms and two seeds was run by one command."""
    folder = tmp_path_factory.mktemp("study")
    done = run_cli("-m", "+study=placebo", *TINY, "study.workers=2", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "2 arms x 2 seeds on 2 " in done.stdout
    assert re.search(r"\b2 cells\b", done.stdout)  # at a time
    assert "[4/4] dapo" in done.stdout
    assert "pairs" in done.stdout
    assert "undecided." in done.stdout
    assert f"report: {STUDY}/report/report.html" in done.stdout
    return folder


def test_a_study_in_which_no_run_learned_anything_finds_nothing_and_says_so(tmp_path, cache):
    unreadable = ("reward.extraction=boxed", "preflight=false", "study.seeds=[0]")  # all responses are wrong
    done = run_cli("-m", "+study=placebo", *TINY, *unreadable, cwd=tmp_path)
    assert done.returncode == 2
    assert "no findings" in done.stdout
    report = (tmp_path / STUDY / "report" / "report.html").read_text()
    assert "2 of 2 runs" in report


@pytest.fixture
def study(finished, tmp_path) -> Path:
    """A copy of it to spoil."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_one_command_runs_every_arm_and_seed_and_registers_the_plan_before_the_first(finished):
    cells = {f"{arm}/seed_{seed}" for arm in ("dapo", OTHER) for seed in (0, 1)}
    assert set(done_at(finished / STUDY)) == cells
    plan, edits = read_plan(finished / STUDY)
    assert plan is not None
    assert (plan.study, plan.reference, plan.arms, plan.seeds) == ("placebo", "dapo", ("dapo", OTHER), (0, 1))
    assert (plan.metric, plan.declared) == ("eval/four_sums/avg@2", ("rollout.noise_stream",))
    assert edits == []
    registered = json.loads((finished / STUDY / "study.json").read_text())[0]["at"]
    assert all(registered <= run.record["started_at"] for run in load(finished / STUDY))


def test_running_again_fills_only_the_gap_and_registers_nothing_new(study):
    shutil.rmtree(study / STUDY / OTHER / "seed_1")
    before = done_at(study / STUDY)
    assert launch(cwd=study) == 0
    after = done_at(study / STUDY)
    assert {cell: at for cell, at in after.items() if cell in before} == before
    assert set(after) - set(before) == {f"{OTHER}/seed_1"}
    assert len(json.loads((study / STUDY / "study.json").read_text())) == 1


def test_one_cell_can_be_run_by_name_and_a_seed_beyond_the_plan_is_an_edit_of_it(study):
    assert train_here("+study=placebo", *TINY, f"study.arm={OTHER}", "seed=2", cwd=study) == 0
    assert f"{OTHER}/seed_2" in done_at(study / STUDY)
    edits = read_plan(study / STUDY)[1]
    assert [edit.split(" was changed")[0] for edit in edits] == ["seeds"]


def test_the_launch_commits_the_plan_where_it_is_asked_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    committed = []
    monkeypatch.setattr("dapo_lit.cli.study_launch.commit_file", lambda *given: committed.append(given))
    study = ["-m", "+study=kl_null", "+regime=joint"]
    prepare(study)[1].register()
    assert not committed
    sweep = prepare([*study, "study.registered_in=experiments/mine"])[1]
    sweep.register()
    place = Path("experiments/mine/study.json")
    ((source, target, subject),) = committed
    assert (source, target) == (sweep.folder / "study.json", place)
    assert "kl_null" in subject


def test_a_study_of_uncommitted_code_is_refused_and_a_pilot_of_it_registers_no_comparison(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dapo_lit.cli.study_launch.uncommitted", lambda: ["dapo_lit/train.py", "conf/task/gsm8k.yaml"])
    study = ["-m", "+study=kl_null", "+regime=joint"]
    with pytest.raises(ConfigError, match=r"dapo_lit/train\.py and 1 more.*study\.pilot=true"):
        prepare(study)
    assert not (tmp_path / "runs").exists()
    sweep = prepare([*study, "study.pilot=true", "seed=0"])[1]  # one pair would be too few to decide anything
    sweep.register()
    (entry,) = json.loads((sweep.folder / "study.json").read_text())
    assert (entry["plan"]["pilot"], entry["plan"]["families"], len(entry["git_commit"])) == (True, [], 40)
    started(sweep.folder)
    monkeypatch.setattr("dapo_lit.cli.study_launch.uncommitted", list)
    with pytest.raises(StudyError, match="pilot true, now false"):  # what was a pilot stays one
        prepare(study)
    prepare(["-m", "+experiment=ablate_token_level_loss"])


def test_uncommitted_files_of_code_are_named_and_pages_are_not(tmp_path, monkeypatch):
    for name in ("dapo_lit", "conf", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("1")
    monkeypatch.setattr("dapo_lit.runs.code_state.ROOT", tmp_path)
    monkeypatch.setattr("dapo_lit.runs.code_state.CODE", CODE)
    assert uncommitted() == []  # no checkout
    for command in ("init -q", "add .", "-c user.name=t -c user.email=t commit -qm t"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    (tmp_path / "docs" / "a").write_text("2")
    assert uncommitted() == []
    (tmp_path / "dapo_lit" / "a").write_text("2")
    (tmp_path / "conf" / "new").write_text("1")
    assert uncommitted() == ["dapo_lit/a", "conf/new"]


def test_a_seed_that_would_count_before_the_registered_ones_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = ["-m", "+experiment=ablate_token_level_loss"]
    sweep = prepare([*study, "seed=range(10,16)"])[1]
    sweep.register()
    started(sweep.folder)
    with pytest.raises(ConfigError, match="16"):
        prepare([*study, "seed=range(8,16)"])
    prepare([*study, "seed=range(12,18)"])[1].register()
    assert [len(entry["plan"]["seeds"]) for entry in json.loads((sweep.folder / "study.json").read_text())] == [6, 8]


def test_a_packed_study_is_extended_as_its_cells_were_made(tmp_path, monkeypatch):
    """The regime's evaluation has changed since; the command of the study's page starts the six cells of two seeds."""
    folder = Path(__file__).parent.parent / "experiments" / "clip_dose_discovery" / "runs"
    monkeypatch.chdir(tmp_path)
    _, sweep = prepare(["-m", "+study=clip_dose", "+regime=discovery", "seed=range(0,14)", f"study.packed={folder}"])
    packed = {(run.arm, run.seed): run.identity for run in load(folder)}
    for cell in sweep.cells:
        if cell.seed in (3, 13):
            found = identity(compose_run(sweep.composed(cell), Config).model_dump(mode="json"))
            assert packed.get((cell.arm, cell.seed), found) == found
            assert found["task.base_seed"] == (1 if cell.seed == 3 else 2)
    assert sum((cell.arm, cell.seed) not in packed for cell in sweep.cells) == 6
    sweep.register()
    first, second = json.loads((sweep.folder / "study.json").read_text())[-2:]
    assert (len(first["plan"]["seeds"]), second["plan"]["seeds"]) == (12, list(range(14)))


def test_a_family_may_compare_any_two_arms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, sweep = prepare(["-m", "+study=penalised_answers", "+regime=joint"])
    sweep.register()
    (entry,) = json.loads((tmp_path / "runs" / "penalised_answers_joint" / "study.json").read_text())
    last = entry["plan"]["families"][-1]
    off = "dapo-dynamic_sampling@overlong.punish="
    assert (last["name"], last["margin"]) == ("right answers or none", 0.02)
    assert [contrast["weights"] for contrast in last["contrasts"]] == [{f"{off}right": 1.0, f"{off}none": -1.0}]


def test_the_factorial_registers_main_effects_and_interactions_and_runs_seed_by_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, sweep = prepare(["-m", "+study=factorial", "+regime=joint"])
    sweep.register()
    (entry,) = json.loads((tmp_path / "runs" / "factorial_joint" / "study.json").read_text())
    effects, interactions = entry["plan"]["families"]
    assert (effects["name"], effects["alpha"], len(effects["contrasts"])) == ("main effects", 0.025, 5)
    assert (interactions["name"], interactions["alpha"], len(interactions["contrasts"])) == ("interactions", 0.025, 10)
    for contrast in (*effects["contrasts"], *interactions["contrasts"]):
        assert sorted(set(contrast["weights"].values())) == [-1 / 16, 1 / 16]  # the same variance for all
        assert {"joint", "avg@32", "avg@2"} <= {*re.findall(r"[\w@]+", contrast["words"])}
    text = json.dumps(entry["plan"], sort_keys=True, separators=(",", ":"))
    assert entry["digest"] == hashlib.sha256(text.encode()).hexdigest()
    assert [cell.seed for cell in sweep.cells] == [seed for seed in range(40, 52) for _ in range(32)]
    assert [composed_tree(sweep.overrides(c)).task.base_seed for c in sweep.cells[:64:32]] == [40, 41]


def test_more_seeds_with_another_setting_are_refused_before_their_first_cell(study, capsys):
    before = done_at(study / STUDY)
    assert launch("study.seeds=[2,3]", "algorithm.clip.low=0.1", cwd=study) == 2
    said = capsys.readouterr().err
    assert f"{STUDY}/dapo/seed_0" in said
    assert " in algorithm.clip.low, " in said
    assert done_at(study / STUDY) == before
    aside = study / STUDY / "dapo" / "seed_0.replaced"
    aside.mkdir()
    (aside / "DONE.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(study)
        _, sweep = prepare(["-m", "+study=placebo", *TINY, "study.seeds=[2,3]"])
    assert {cell.seed for cell in sweep.cells} == {2, 3}


def test_a_packed_cell_with_the_same_config_is_not_run_again(study, capsys):
    packed = study / "experiments" / "runs"
    assert status([str(study / STUDY), "--pack", str(packed)]) == 0
    started_from = {run.record["base_weights"] for run in load(packed)}
    assert {weights_of(base) for base in (packed / "bases").iterdir()} == started_from
    for arm in ("dapo", OTHER):
        shutil.rmtree(study / STUDY / arm)
    first, second, other = (run for run in load(packed) if run.name != f"{OTHER}/seed_1")
    algorithm = other.config["algorithm"]
    changed = {**other.config, "algorithm": {**algorithm, "clip": {**algorithm["clip"], "low": 0.1}}}
    write_packed([first, second, replace(other, config=changed)], packed)
    capsys.readouterr()
    assert launch("study.packed=experiments/runs", cwd=study) == 0
    printed = capsys.readouterr().out
    assert set(done_at(study / STUDY)) == {f"{OTHER}/seed_0", f"{OTHER}/seed_1"}  # another config, and not packed
    assert printed.count("packed in experiments/runs/dapo/seed_") == 2
    assert printed.count("(algorithm.clip.low: 0.1 -> 0.2)") == 1
    write_packed([first, second], packed)
    assert status([str(study / STUDY), str(packed)]) == 0
    assert "4 done of 4 cells" in capsys.readouterr().out


def test_a_cell_does_not_start_from_other_weights_than_the_arms_of_its_seed(study, tmp_path, capsys):
    """Neither where those are runs nor where they are packed; without the key it starts from theirs."""
    packed, bases = tmp_path / "packed", tmp_path / "bases"
    shutil.rmtree(study / STUDY / OTHER)
    assert status([str(study / STUDY), "--pack", str(packed), "--bases", str(bases)]) == 3
    assert not (packed / "bases").exists()
    for base in bases.iterdir():
        content = bytearray((base / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (base / "model.safetensors").write_bytes(content)
    for packed_cells in ((), (f"study.packed={packed}",)):
        if packed_cells:
            shutil.rmtree(study / STUDY / "dapo")
        capsys.readouterr()
        cell = (
            "+study=placebo",
            *TINY,
            f"study.arm='{OTHER}'",
            "seed=1",
            "study_name=placebo_four_sums",
            *packed_cells,
        )
        assert train_here(*cell, f"policy.base_from={bases}", cwd=study) == 2
        error = capsys.readouterr().err
        assert error.count("error: ") == error.count("dapo/seed_1") == 1
        assert f"policy.base_from={bases}" in error
        assert not (study / STUDY / OTHER / "seed_1" / "run.json").exists()
    assert train_here(*cell, cwd=study) == 0


def test_a_cell_that_another_process_works_on_is_left_alone(study, capsys):
    shutil.rmtree(study / STUDY / "dapo" / "seed_0")
    shutil.rmtree(study / STUDY / OTHER / "seed_0")
    busy = study / STUDY / "dapo" / "seed_0"
    busy.mkdir()
    claim = {"owner": "another", "host": os.uname().nodename, "pid": os.getppid()}
    (busy / "heartbeat").write_text(json.dumps(claim))
    assert launch(cwd=study) == 0
    assert re.search(rf"{STUDY}/dapo/seed_0: .*\(pid {os.getppid()} on", capsys.readouterr().out)
    assert f"{OTHER}/seed_0" in done_at(study / STUDY)
    assert "dapo/seed_0" not in done_at(study / STUDY)


@pytest.mark.parametrize(
    ("minutes", "is_held"),
    [
        ({"run.json": 200, "heartbeat": 2}, True),  # in a step of three hours
        ({"run.json": 200, "heartbeat": 15}, False),
        ({"run.json": 1, "heartbeat": 200}, True),  # it has just been resumed
        ({"run.json": 200, "metrics.jsonl": 70}, False),
        ({"run.json": 200, "heartbeat": -14_400}, False),  # its clock was days ahead
    ],
)
def test_a_cell_on_another_machine_is_left_alone_as_long_as_that_machine_writes(tmp_path, minutes, is_held):
    folder = tmp_path / "dapo" / "seed_0"
    folder.mkdir(parents=True)
    record = {"status": "running", "host": "elsewhere", "pid": 7, "updated_at": "2026-01-01T01:00:00+00:00"}
    (folder / "run.json").write_text(json.dumps(record))
    for name, age in minutes.items():
        (folder / name).touch()
        os.utime(folder / name, (time.time() - 60 * age,) * 2)
    assert "pid 7 on elsewhere" in str(holder(folder)) if is_held else holder(folder) is None


def test_a_process_that_has_ended_holds_no_cell(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as other:
        claim = {"owner": "another", "host": os.uname().nodename, "pid": other.pid}
        (tmp_path / "heartbeat").write_text(json.dumps(claim))
        assert f"pid {other.pid} on {os.uname().nodename}" in str(holder(tmp_path))
        other.kill()
        other.wait()
        assert holder(tmp_path) is None


def test_a_failed_cell_does_not_stop_the_others_and_the_exit_code_says_so(study, capsys):
    shutil.rmtree(study / STUDY / "dapo" / "seed_1")
    changed = study / STUDY / "dapo" / "seed_0"
    (changed / "DONE.json").unlink()  # unfinished, and started with another config
    (changed / "config.yaml").write_text((changed / "config.yaml").read_text().replace("low: 0.2", "low: 0.1"))
    resealed(changed)
    assert launch(cwd=study) == 2
    assert "algorithm.clip.low: 0.1 -> 0.2" in capsys.readouterr().err
    assert "dapo/seed_1" in done_at(study / STUDY)


def test_what_cannot_learn_is_refused_before_the_cells_run_and_leaves_no_run(tmp_path, cache):
    """The cells would refuse it as well, each in the log of its worker."""
    wrong = ("study.workers=2", "reward.function=json.no_such_function")
    done = run_cli("-m", "+study=placebo", *TINY, *wrong, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert done.stdout.count("  tokenizer  ") == 1  # a row of the checks before the first step
    assert done.stderr.count("error: ") == 1
    assert "no_such_function" in done.stderr
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and "study" not in file.name]


def test_a_refused_command_edits_no_plan_and_touches_no_older_run(study, capsys):
    before = {file: file.read_bytes() for file in (study / STUDY).rglob("*") if file.is_file()}
    assert launch("seed=range(0,3)", "reward.function=json.no_such_function", cwd=study) == 2
    assert "registered" not in capsys.readouterr().out
    assert {file: file.read_bytes() for file in (study / STUDY).rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["-m", "+study=tabel1"], "+study=table1"),
        (["-m", "+study=table1", "algorithm=grpo"], "algorithm.family=grpo"),
        (["-m", "+study=clip_dose", "study.arm=dapo@clip.hihg=0.5"], "dapo@clip.high=0.5"),
        (["-m", "+study=table1", "study.seeds=[]"], "'seed=range(0,12)'"),
        (["-m", "+study=table1", "seed=range(0,7)"], "0.01 'seed=range(0,8)'"),
        (["-m", "+experiment=ablate_clip_higher", "seed=0,1"], "2 base policies cannot decide"),
        (["-m", "+study=table1", "study.seeds=[1,1]"], "one is named twice"),
        (["+study=table1"], "-m study.arm=naive_grpo"),
        (["-m", "+study=table1", "algorithm.clip.high=0.3,0.4"], "study.arm seed"),
        (["-m", "+study=table1", "algorithm.techniques.clip_higher=true"], "the arms of a study set the switches"),
        (["-m", "+study=table1", "study.packed=nowhere"], "study.packed=nowhere"),
        (["-m", "+study=table1", "hydra/launcher=basic", "study.until=decided"], "a study starts its cells itself"),
        (["-m", "+study=table1", "study.arms=[ladder,cub]"], "study.arms 'cub'"),
        (["-m", "study=table1"], "+study=table1"),
        (["-m", "+study=table1", "study.arm=dpo"], "'dpo' dapo"),
        (["-m", "+study=table1", "study.bases=[4,5,6]"], "3 base policies cannot decide"),
        (["-m", "+study=table1", "study.families={rungs: 0.05}"], "'rungs'"),
        (["-m", "+study=table1", "study.families={ladder: 0.06}"], "alpha 0.05"),
        (["-m", "+study=table1", "study.families={mine: 0.05}", "study.pairs={mine: [dapo - dappo]}"], "dapo?"),
        (["-m", "+study=table1", "study.pairs={mine: [dapo - naive_grpo]}"], "mine has no share"),
        (["-m", "+study=table1", "seed=a,b"], "seed=a"),
        (["-m", "+study=table1", "study.arms=null"], "study.arms table1"),
        (["-m", "+study=clip_dose", "algorithm.kl.beta=${algorithm.clip.high}"], "algorithm.kl.beta"),
        (["-m", "+study=clip_dose", "algorithm.clip.high=0.5"], "dapo@clip.high=0.5"),
    ],
)
def test_a_study_that_cannot_be_right_is_refused_before_anything_is_written(tmp_path, capsys, arguments, keys):
    assert train_here(*arguments, cwd=tmp_path) == 2
    said = capsys.readouterr().err
    assert [key for key in keys.split() if key not in said] == [], said
    assert list(tmp_path.iterdir()) == []
