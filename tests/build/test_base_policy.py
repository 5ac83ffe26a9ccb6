"""Where a base policy is from: the folder that is named, the package, this machine; never the working directory."""

import json
import shutil
from pathlib import Path

import pytest

from ablations.errors import DamagedError
from ablations.files.manifest import read_manifest, write_manifest
from dapo_lit.build import base_policy
from dapo_lit.build.base_policy import SHIPPED, base_spec, find_base, pack_base, weights_of
from dapo_lit.cli.command import compose as composed
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.config.shipped import choice
from dapo_lit.runs.resume import check_reference

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("DAPO_LIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return of()


def of(*overrides: str) -> Config:
    return parse(resolved(composed_tree(["task.base=null", "task.base_seed=3", *overrides])))


def perturbed(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_base_policies_near_the_working_directory_are_not_taken(config: Config, tmp_path: Path) -> None:
    own = find_base(config.policy, config.task)
    assert own.folder.parent == tmp_path / "cache"
    assert own.origin == f"pre-trained on this machine, {tmp_path / 'cache'}"
    for place in ("experiments/made_up/runs/bases", "experiments/bases/made_up", "base_policies"):
        shutil.copytree(own.folder, tmp_path / place / own.folder.name)
        perturbed(tmp_path / place / own.folder.name)
    assert find_base(config.policy, config.task) == own


def test_the_named_folder_is_the_only_one(config: Config, tmp_path: Path) -> None:
    own = find_base(config.policy, config.task)
    packed = tmp_path / "packed"
    assert pack_base(config.policy, config.task, own.weights, packed) is None
    assert json.loads((packed / own.folder.name / "base.json").read_text())["seed"] == 3
    perturbed(packed / own.folder.name)  # as a processor that rounds otherwise made them
    named = of(f"policy.base_from={packed}")
    found = find_base(named.policy, named.task)
    assert found.folder == packed / own.folder.name
    assert found.weights == weights_of(found.folder) != own.weights
    assert found.origin == f"policy.base_from={packed}"
    other = of(f"policy.base_from={packed}", "task.base_seed=4")
    with pytest.raises(ConfigError, match=rf"policy\.base_from={packed}: there is no base-"):
        find_base(other.policy, other.task)
    nowhere = of(f"policy.base_from={tmp_path / 'nowhere'}")
    with pytest.raises(ConfigError, match=r"policy\.base_from=.*nowhere: no such folder"):
        find_base(nowhere.policy, nowhere.task)
    with pytest.raises(ConfigError, match=r"policy\.base_from=bases"):
        of("policy.path=model", "policy.base_from=bases")


def test_a_base_with_other_weights_than_the_runs_started_from_is_not_packed(config: Config, tmp_path: Path) -> None:
    own = find_base(config.policy, config.task)
    assert "0123456789abcdef" in str(pack_base(config.policy, config.task, "0123456789abcdef", tmp_path / "bases"))
    assert not (tmp_path / "bases").exists()
    assert pack_base(config.policy, config.task, own.weights, tmp_path / "bases") is None
    perturbed(tmp_path / "bases" / own.folder.name)
    assert "has other weights" in str(pack_base(config.policy, config.task, own.weights, tmp_path / "bases"))


def test_a_shipped_base_comes_before_this_machines_and_must_be_as_it_was_shipped(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = find_base(config.policy, config.task)
    name, shipped = own.folder.name, tmp_path / "shipped"
    shutil.copytree(own.folder, shipped / name)
    perturbed(shipped / name)
    entry = {"weights": weights_of(shipped / name), "processor": "another"}
    write_manifest(shipped, {"bases": {name: entry}})
    monkeypatch.setattr(base_policy, "SHIPPED", shipped)
    found = find_base(config.policy, config.task)
    assert (found.folder, found.weights) == (shipped / name, entry["weights"])
    assert found.origin == "shipped with dapo_lit (made on another)"
    perturbed(shipped / name)
    with pytest.raises(DamagedError, match="not as it was shipped"):
        find_base(config.policy, config.task)
    shutil.rmtree(shipped / name)
    with pytest.raises(DamagedError, match="not as it was shipped"):
        find_base(config.policy, config.task)


COMMANDS = [
    ["+experiment=dapo", "+regime=joint"],
    ["+experiment=dapo", "+regime=browser"],
    *(["+experiment=add_soft_punishment", f"seed={seed}"] for seed in range(7)),
]


def test_the_package_ships_what_the_readmes_two_commands_and_the_page_that_trains_start_from() -> None:
    """Each is in the package, under its recipe's name and with the weights that the manifest gives it."""
    bases = (read_manifest(SHIPPED) or {})["bases"]
    found = {}
    for command in COMMANDS:
        config = composed(*command)
        spec = base_spec(config.policy, config.task)
        recipe = json.loads((SHIPPED / spec.folder_name() / "base.json").read_text())
        assert recipe == json.loads(json.dumps(spec.recipe()))
        found[spec.folder_name()] = find_base(config.policy, config.task).weights
    assert found == {name: entry["weights"] for name, entry in bases.items()}
    assert len(set(found.values())) == len(found) == 8  # that of `make train` is one of them
    assert {file.name for file in SHIPPED.iterdir() if file.is_dir()} == found.keys()
    for entry in bases.values():
        assert entry["processor"]
        assert len(entry["commit"]) == 40


def test_the_shipped_commands_are_those_of_makefile_and_readme() -> None:
    assert "+experiment=dapo +regime=joint" in (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "-m +experiment=add_soft_punishment\n" in readme
    assert choice("experiment", "add_soft_punishment")["study"]["seeds"] == list(range(7))


def test_a_run_with_a_kl_term_goes_on_with_the_reference_it_had(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"base_weights": "aaaa", "base_origin": "there"}))
    with_term, without = of("algorithm.kl.beta=0.1"), of()
    check_reference(tmp_path, with_term, "aaaa")
    check_reference(tmp_path, without, "bbbb")
    with pytest.raises(ConfigError, match=r"aaaa .*bbbb"):
        check_reference(tmp_path, with_term, "bbbb")
