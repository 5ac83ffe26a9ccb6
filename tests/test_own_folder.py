"""A folder of configs of one's own: in a run, in the cells of a study and in the jobs of a multirun."""

import os
import time
from pathlib import Path

import pytest

from ablations.errors import UserError
from dapo_lit.cli.command import checked, compose_run
from dapo_lit.cli.config_tree import composed_tree
from dapo_lit.config import Config, ConfigError

HEADER = "# @package _global_\n"


@pytest.fixture
def own(tmp_path):
    """`mine/short.yaml`, a group of another name, and two experiments, one of them a study."""
    folder = tmp_path / "my configs"
    (folder / "mine").mkdir(parents=True)
    (folder / "experiment").mkdir()
    (folder / "mine" / "short.yaml").write_text(HEADER + "budget:\n  steps: 3\n", encoding="utf-8")
    (folder / "experiment" / "short.yaml").write_text(HEADER + "budget:\n  steps: 3\n", encoding="utf-8")
    text = HEADER + "defaults: [/study/leave_one_out, _self_]\nstudy:\n  pilot: true\nbudget:\n  steps: 3\n"
    (folder / "experiment" / "my_study.yaml").write_text(text, encoding="utf-8")
    return folder


def prepared(*arguments: str):
    [(line, study)] = checked([*arguments], Config, None)
    return line, study


@pytest.mark.parametrize("form", ["--config-dir {}", "--config-dir={}", "-cd {}"])
def test_the_flag_reaches_a_run_in_each_of_its_forms(own, form):
    flag = [own.as_posix() if part == "{}" else part.format(own.as_posix()) for part in form.split(" ")]
    line, _ = prepared(*flag, "+mine=short", "seed=4")
    config = compose_run(composed_tree([a for a in line if not a.startswith("-")]), Config)
    assert (config.budget.steps, config.seed) == (3, 4)


def test_a_relative_folder_is_found_from_where_the_command_was_typed(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    line, _ = prepared("--config-dir", own.name, "+experiment=short")
    monkeypatch.chdir("/")
    assert compose_run(composed_tree(line), Config).budget.steps == 3


@pytest.mark.parametrize("name", ["10", "08", "1e3", "-1"])
def test_a_choice_that_looks_like_a_number_is_its_name(own, name):
    (own / "mine" / f"{name}.yaml").write_text(HEADER + "evaluation:\n  samples: 5\n", encoding="utf-8")
    line, _ = prepared("--config-dir", str(own), f"+mine={name}")
    assert compose_run(composed_tree(line), Config).evaluation.samples == 5
    searched = next(argument for argument in line if argument.startswith("hydra.searchpath"))
    assert compose_run(composed_tree([searched, f"+mine={name}"]), Config).evaluation.samples == 5
    with pytest.raises(ConfigError, match="mine=99: "):
        prepared("--config-dir", str(own), "+mine=99")


@pytest.mark.parametrize("sweep", ["1,2", "range(1,3)"])
def test_the_choices_of_a_sweep_may_look_like_numbers(own, sweep):
    for name in ("1", "2"):
        (own / "mine" / f"{name}.yaml").write_text(HEADER + f"seed: {name}\n", encoding="utf-8")
    line, _ = prepared("-m", "--config-dir", str(own), f"+mine={sweep}")
    assert "+mine='1','2'" in line


@pytest.mark.parametrize("choice", ["+mine=short", "+experiment=short"])
def test_the_cells_of_a_study_are_composed_from_it(own, choice):
    _, study = prepared("-m", "--config-dir", str(own), choice, "+study=leave_one_out", "study.pilot=true")
    assert study is not None
    config = compose_run(study.composed(study.cells[-1]), Config)
    assert (config.own_study.name, config.own_study.arm) == ("leave_one_out", study.cells[-1].arm)


def test_a_study_overrides_what_a_group_of_ones_own_sets(own):
    (own / "mine" / "short.yaml").write_text(HEADER + "evaluation:\n  final_samples: 1\n", encoding="utf-8")
    _, study = prepared("-m", "--config-dir", str(own), "+mine=short", "+study=leave_one_out", "study.pilot=true")
    assert study is not None
    assert study.config.evaluation.final_samples == 32


def test_an_experiment_of_ones_own_may_be_a_study(own):
    _, study = prepared("-m", "--config-dir", str(own), "+experiment=my_study")
    assert study is not None
    assert study.config.budget.steps == 3


def test_two_jobs_that_would_write_one_folder_are_seen(own):
    with pytest.raises(ConfigError, match="would both write"):
        prepared("-m", "--config-dir", str(own), "+mine=short", "algorithm.optimizer.lr=1e-4,1e-5")


def test_a_choice_that_is_not_there_gets_the_nearest_of_both_folders(own):
    with pytest.raises(ConfigError, match=r"mine=shrt: .*\+mine=short"):
        prepared("--config-dir", str(own), "+mine=shrt")
    with pytest.raises(ConfigError, match=r"\+experiment=my_study"):
        prepared("--config-dir", str(own), "+experiment=my_studi")
    with pytest.raises(ConfigError, match=r"\+mine=short"):
        prepared("--config-dir", str(own), "mine=short")


def test_a_folder_that_is_not_there_and_a_second_one(own):
    with pytest.raises(ConfigError, match="--config-dir=nowhere: no such folder"):
        prepared("--config-dir", "nowhere", "+mine=short")
    with pytest.raises(ConfigError, match=r"several folders .*hydra\.searchpath="):
        prepared("--config-dir", str(own), f"hydra.searchpath=['file://{own}']", "+mine=short")


def test_a_folder_of_hydra_s_setting_counts_as_well(own):
    line, _ = prepared(f"hydra.searchpath=['file://{Path(own)}']", "+mine=short")
    assert compose_run(composed_tree(line), Config).budget.steps == 3


LAUGHS = "a0: &a0 [x, y]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
TWICE = "a0: xxxxxxxxxx\n" + "".join(f"a{i}: ${{a{i - 1}}}${{a{i - 1}}}\n" for i in range(1, 40))
BOMBS = {
    "aliases": (LAUGHS, "more than 5,000 values"),
    "itself": ("a: &a {x: *a}", "it holds itself"),
    "deep": ("x: " + "[" * 100_000, "nested too deep"),
    "many": ("x: [" + "1, " * 6_000 + "]", "more than 5,000 values"),
    "doubled": (TWICE, "interpolations written out it holds more than 1,000,000"),
    "doubled by a resolver": (TWICE.replace("{a", "{oc.select:a"), "interpolations written out"),
    "doubled mappings": (
        TWICE.replace("a0: xxxxxxxxxx", "a0: {x: 1}").replace("}$", "}, y: $"),
        "not YAML|written out",
    ),
    "a name that is made": ("a: b\nb: 1\nc: ${${a}}", "the name in an interpolation is made by another one"),
    "sixties": ("seed: 1" + ":1" * 90_000, "beyond 64 bits"),
    "twice": ("seed: 1\nseed: 2", "duplicate key seed"),
    "code": ("x: !!python/object/apply:os.system [ls]", "it is not YAML"),
    "long": ("x: " + "y" * 200_000, "at most 200,000 are read"),
}


def composed_with(own: Path, name: str) -> Config:
    line, _ = prepared("--config-dir", str(own), f"+mine={name}")
    return compose_run(composed_tree([a for a in line if not a.startswith("-")]), Config)


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_of_settings_that_stands_for_more_than_a_config_is_refused_in_one_line(own, name):
    text, reason = BOMBS[name]
    (own / "mine" / "bomb.yaml").write_text(HEADER + text, encoding="utf-8")
    composed_tree(["seed=1"])  # what Hydra loads once
    before = time.process_time()
    with pytest.raises(UserError, match=reason) as refused:
        composed_with(own, "bomb")
    assert "\n" not in str(refused.value)
    assert time.process_time() - before < 2


def test_devices_pipes_and_other_encodings_are_no_files_of_settings(own):
    folder = own / "mine"
    (folder / "zero.yaml").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "utf16.yaml").write_text(HEADER, encoding="utf-16")
    with (folder / "large.yaml").open("wb") as file:
        file.truncate(1 << 31)
    for name, reason in {
        "zero": "mine=zero",
        "pipe": "mine=pipe",
        "utf16": "UTF-8",
        "large": "2,147,483,648 bytes",
    }.items():
        with pytest.raises(UserError, match=f"{reason}|Could not find"):
            composed_with(own, name)


def test_a_pickled_job_of_hydras_is_no_way_to_start_a_run():
    with pytest.raises(ConfigError, match=r"--experimental-rerun=config\.pickle: no such flag"):
        prepared("--experimental-rerun=config.pickle")
