"""A config from elsewhere is data for every command that reads one: literals of the schema, no grammar, no code."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.errors import UserError
from ablations.read.packed_cells import write_packed
from ablations.read.runs import load
from ablations.trainer import flatten
from dapo_lit.cli.command import compose, compose_run
from dapo_lit.cli.fork import for_each_state
from dapo_lit.cli.study_launch import prepare
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.foreign import config_without_code, foreign_config
from dapo_lit.config.identity import differences
from dapo_lit.evaluation.model_source import open_run_model
from dapo_lit_tools.replays.recorded_step import open_recording

SHIPPED = Path(__file__).parents[2] / "experiments" / "clip_dose_discovery" / "runs"
EVIL = {"_target_": "subprocess.call", "args": ["touch", "executed"]}
NAMES_CODE = {
    "algorithm/loss": "evil.loss",
    "reward/function": "evil.reward",
    "reward/weights": {"correctness": 1.0, "evil.reward": 0.0},
}
REFUSED: dict[str, Any] = {
    "++algorithm.loss": "evil.loss", "++callbacks": {"x": EVIL}, "++logger.lightning": EVIL, "++runs_dir": "stolen",
    "++reward.function": "evil.reward", "++reward.weights": "{evil.reward: 0}", "+callbacks.x._target_": "os.system",
    "++trainer.threads": 7, "a=b,c": 1, "x y": 1, "": 1, "${oc.env:HOME}": 1, "task/label": "${oc.env:HOME}",
    "++seed": 9, "++resume": False, "++budget.steps": 1, "algorithm/optimizer/lr": "${oc.env:HOME}",
    "algorithm/num_prompts": "8'", "algorithm/advantage": None, "algorithm": 5, "study ": 1, "~callbacks": None,
    "hydra/launcher": "basic", "hydra.callbacks": {"x": EVIL}, "++study.packed": "/etc", "++study.alpha": 0.9,
    "++study.until": "decided", "++evaluation.samples": 1, "algorithm/family": "../../up", "policy/path": "???",
    "task/options": {"terms": ["${now:%Y}"]}, "task": [], "policy/lora": "x", "algorithm/loss": {"a": "evil.loss"},
}  # fmt: skip
"""Keys below which a stranger puts a value, and that value: with a slash the key of a section, else one at the top."""
NOT_TAKEN = {
    "callbacks": {"x": EVIL}, "logger": {"lightning": EVIL}, "runs_dir": "stolen", "resume": True, "preflight": False,
    "regime": {"name": "x"}, "replay": {"record": [1]}, "study_name": "../up",
}  # fmt: skip
PACKED_STUDY = ["-m", "+study=clip_dose", "+regime=discovery", "seed=range(0,14)", "study.packed=packed"]
RUN = Path("runs/four_sums/dapo/seed_0")
FORK = ["-m", "+study=fork", f"fork.run={RUN}", "fork.steps=[2]", "fork.horizon=2"]


@pytest.fixture(scope="module")
def first_packed():
    return next(iter(load(SHIPPED)))


@cache
def four_sums() -> dict[str, Any]:
    return compose("+experiment=four_sums").model_dump(mode="json")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a module that leaves a trace where it is imported."""
    (tmp_path / "evil.py").write_text("open('executed', 'w')\ndef reward(problems, completions): return []\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def altered(tree: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    changed = json.loads(json.dumps(tree))
    *sections, last = key.split("/") if key != "hydra/launcher" else [key]
    inner = changed
    for section in sections:
        inner = inner[section]
    inner[last] = value
    return changed


def pack(run: Any, config: dict[str, Any]) -> None:
    """One cell with this config as a packed study, with the plan of the shipped one."""
    write_packed([replace(run, config=config)], Path("packed"))
    shutil.copy2(SHIPPED / "study.json", "packed")


def packed(run: Any, key: str, value: object) -> Config:
    """Extends a packed study, and composes its first new cell."""
    pack(run, altered(run.config, key, value))
    _, sweep = prepare(PACKED_STUDY)
    return compose_run(sweep.composed(sweep.cells[-1]), Config)


def run_with(run: Any, key: str, value: object) -> Path:
    """A run folder with nothing but the config, which has what `run` has that a run of the command cannot have."""
    RUN.mkdir(parents=True)
    tree = four_sums() | {name: run.config[name] for name in NOT_TAKEN}
    (RUN / "config.yaml").write_text(yaml.safe_dump(altered(tree, key, value), sort_keys=False))
    (RUN / "replay").mkdir()
    (RUN / "replay" / "step_000002.ckpt").touch()
    return RUN


def forked(run: Any, key: str, value: object) -> Config:
    run_with(run, key, value)
    (arguments,) = for_each_state(FORK)
    _, sweep = prepare(arguments)
    return compose_run(sweep.composed(sweep.cells[-1]), Config)


def replayed(run: Any, key: str, value: object) -> Config:
    return open_recording(run_with(run, key, value), 2).config


def evaluated(run: Any, key: str, value: object) -> Config:
    """`evaluate` and `export` open a run in this way."""
    return open_run_model(run_with(run, key, value))[1]


READERS: dict[str, Callable[[Any, str, object], Config]] = {
    "study.packed": packed, "fork.run": forked, "replay": replayed, "evaluate and export": evaluated,
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("key", "value"), REFUSED.items())
def test_every_reader_refuses_in_one_line_what_is_no_literal_of_the_schema(reader, key, value, first_packed, place):
    with pytest.raises(UserError) as refused:
        READERS[reader](first_packed, key, value)
    assert "\n" not in str(refused.value)
    assert ("packed" if reader == "study.packed" else str(RUN)) in str(refused.value)
    assert not {"executed", "stolen"} & {file.name for file in place.iterdir()}


@pytest.mark.parametrize("reader", ["study.packed", "fork.run", "replay"])
@pytest.mark.parametrize(("key", "value"), NAMES_CODE.items())
def test_code_that_the_user_did_not_name_is_refused_where_it_would_run(reader, key, value, first_packed, place):
    with pytest.raises(ConfigError, match=r"names code.*evil"):
        READERS[reader](first_packed, key, value)
    assert not (place / "executed").exists()


@pytest.mark.parametrize(("key", "value"), NAMES_CODE.items())
def test_readers_without_a_use_for_code_leave_its_name_out(key, value):
    tree = four_sums()
    config = config_without_code(altered(tree, key, value), "here")
    assert "evil" not in json.dumps(config.model_dump(mode="json"))


@pytest.mark.parametrize("reader", READERS)
def test_names_places_loggers_and_callbacks_are_not_taken(reader, first_packed, place):
    hostile = replace(first_packed, config=first_packed.config | NOT_TAKEN)
    if reader in ("study.packed", "fork.run"):
        config = READERS[reader](hostile, "resume", True)
        assert not config.callbacks
        assert config.logger.lightning is None
        assert config.runs_dir == "runs"
        assert config.preflight is (reader == "study.packed")
    else:
        with pytest.raises(UserError, match=r"no checkpoint|no step is recorded"):  # the folder holds the config only
            READERS[reader](hostile, "resume", True)
    assert not (place / "executed").exists()


@pytest.mark.parametrize("bases", ["x", [1.5], ["${seed}"], {"a": 1}])
def test_base_policies_of_packed_cells_are_numbers(bases, first_packed):
    with pytest.raises(UserError, match=r"packed.*study\.bases"):
        packed(first_packed, "study/bases", bases)


@pytest.mark.parametrize(("key", "value"), [("trainer/threads", 7), ("seed", 7), ("task/base_seed", 7)])
def test_a_packed_study_gives_neither_seeds_nor_what_the_machine_decides(key, value, first_packed):
    config = packed(first_packed, key, value)
    assert (config.seed, config.task.base_seed, config.trainer.threads) == (13, 2, 1)


def test_a_setting_that_is_null_in_the_packed_cells_is_null_in_further_ones(first_packed):
    before = altered(first_packed.config, "policy/lora", None)
    pack(first_packed, before)
    assert prepare([*PACKED_STUDY, "policy.lora={rank: 2, alpha: 4}"])[1].config.policy.lora.rank == 2  # was typed
    pack(first_packed, altered(before, "policy/lora", {"rank": 3, "alpha": 6}))
    assert prepare(PACKED_STUDY)[1].config.policy.lora.rank == 3


def test_a_fork_sends_weights_only_where_the_command_line_says(first_packed):
    servers = {"urls": ["http://stranger:1"], "folder": "there", "transfer": "folder", "wait_s": 1}
    with pytest.raises(ConfigError, match=r"server\.urls"):
        forked(first_packed, "rollout/vllm/server", servers)


def test_what_is_written_by_this_version_is_read_unchanged():
    tree = compose("+experiment=four_sums", "reward.function=mine.reward", "policy.lora={rank: 2, alpha: 4}")
    read = foreign_config(json.loads(tree.model_dump_json()), "here", {"mine.reward"})
    assert differences(*(flatten(config.model_dump(mode="json")) for config in (tree, read))).keys() == {"study_name"}
