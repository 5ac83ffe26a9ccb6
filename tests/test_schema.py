"""The JSON schemas of the configs: every file of conf/ passes, and what an editor should underline does not."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from dapo_lit import schema
from dapo_lit.config.shipped import config_folder

MADE = schema.every_schema()
FILES = [
    (file.relative_to(config_folder()).with_suffix("").parts[0], file)
    for file in sorted(config_folder().rglob("*.yaml"))
]


def faults(name: str, tree: object) -> list[str]:
    return [error.message for error in Draft202012Validator(MADE[name]).iter_errors(tree)]


@pytest.mark.parametrize(("name", "file"), FILES, ids=lambda part: getattr(part, "stem", part))
def test_every_file_of_conf_is_valid(name: str, file: Path):
    assert faults(name, yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_schema_is_one(name):
    Draft202012Validator.check_schema(MADE[name])


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("algorithm", {"clip": {"hihg": 0.28}}),
        ("algorithm", {"clip": {"high": 20}}),
        ("algorithm", {"clip": {"high": "0.28"}}),
        ("algorithm", {"techniques": {"clip_higer": True}}),
        ("algorithm", {"advantage": {"estimator": "grop"}}),
        ("experiment", {"budget": {"steps": 0}}),
        ("experiment", {"bugdet": {"steps": 3}}),
        ("experiment", {"algorithm": {"optimizer": {"betas": [0.9]}}}),
        ("regime", {"regime": {"name": "mine", "stesp": 8}}),
        ("study", {"study": {"alhpa": 0.05}}),
        ("study", {"studdy": {}}),
        ("benchmark", {"rule": "exact"}),
        ("plan", {"workload": {"keep_frac": 2}}),
        ("evaluate", {"samples": 3}),
        ("trainer", {"devices": "${"}),
    ],
)
def test_a_typo_and_a_value_of_another_kind_are_not(name, tree):
    assert faults(name, tree) != []


def test_an_interpolation_may_take_the_place_of_a_value_and_nothing_is_required():
    assert (
        faults("experiment", {"seed": "${oc.env:SEED}", "algorithm": {"clip": {"high": "${algorithm.clip.low}"}}}) == []
    )
    assert all(faults(name, {}) == [] for name in MADE)


def test_every_key_has_its_words_for_the_editor():
    tree = copy.deepcopy(MADE["config"])
    clip = tree["$defs"]["Clip"]["properties"]
    assert clip["high"]["description"].startswith("epsilon_high")
    switches = tree["$defs"]["Techniques"]["properties"]
    assert all("off:" in switch["description"] for switch in switches.values())


def test_the_command_writes_one_file_for_each_and_says_which_files_it_is_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert schema.main(["output=schemas"]) == 0
    printed = capsys.readouterr().out
    written = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "schemas").iterdir()}
    assert written == MADE
    settings = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["yaml.schemas"]
    for file, (pattern,) in settings.items():
        assert (tmp_path / file).is_file()
        assert [*config_folder().parent.glob(pattern)] or [*config_folder().glob(pattern.removeprefix("conf/"))]
    assert schema.main(["algorithm"]) == 0
    assert json.loads(capsys.readouterr().out) == MADE["algorithm"]
