"""Base policies that travel with a study: packed by their weights, taken before one is pre-trained."""

import json
import shutil
from pathlib import Path

import pytest
from composition import tree_of

from dapo_lit.build.base_policy import base_spec, base_weights, pack_base, policy_folder, shipped, weights_of
from dapo_lit.cli.config_tree import resolved
from dapo_lit.config import Config, ConfigError, parse


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("DAPO_LIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return parse(resolved(tree_of(["task.base=null", "task.base_seed=3"])))


def perturbed(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_packed_base_is_taken_where_this_machine_would_make_another(config: Config, tmp_path: Path) -> None:
    own = Path(policy_folder(config.policy, config.task))
    assert own.parent == tmp_path / "cache"
    weights = base_weights(config.policy, config.task)
    assert weights == weights_of(own)
    bases = tmp_path / "experiments" / "made_up" / "runs" / "bases"
    assert pack_base(config.policy, config.task, str(weights), bases) is None
    perturbed(own)  # as a processor that rounds otherwise
    assert Path(policy_folder(config.policy, config.task)).resolve() == bases / own.name
    assert base_weights(config.policy, config.task) == weights
    assert json.loads((bases / own.name / "base.json").read_text())["seed"] == 3


def test_a_base_with_other_weights_than_the_runs_started_from_is_not_packed(config: Config, tmp_path: Path) -> None:
    policy_folder(config.policy, config.task)
    assert "0123456789abcdef" in str(pack_base(config.policy, config.task, "0123456789abcdef", tmp_path / "bases"))
    assert not (tmp_path / "bases").exists()


def test_one_base_in_two_studies_with_different_weights_is_refused(config: Config, tmp_path: Path) -> None:
    own = Path(policy_folder(config.policy, config.task))
    for study in ("a", "b"):
        shutil.copytree(own, tmp_path / "experiments" / study / "bases" / own.name)
    assert shipped(base_spec(config.policy, config.task)) is not None
    perturbed(tmp_path / "experiments" / "b" / "bases" / own.name)
    with pytest.raises(ConfigError, match="different weights"):
        policy_folder(config.policy, config.task)
