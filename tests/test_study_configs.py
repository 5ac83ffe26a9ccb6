"""conf/study and the designs agree, and composed arms differ from their reference in declared keys alone."""

import pytest
from composition import tree_of
from omegaconf import DictConfig, OmegaConf

from dapo_lit.cli.config_tree import resolved
from dapo_lit.cli.regime_study import CALIBRATE
from dapo_lit.cli.study_launch import check_arms, composed_arm, study_design
from dapo_lit.config import config_folder, parse
from dapo_lit.config.identity import flatten
from dapo_lit.study.designs import DESIGNS, design

STUDIES = {file.stem: OmegaConf.load(file) for file in sorted((config_folder() / "study").glob("*.yaml"))}
OWN_ARMS = [name for name, file in STUDIES.items() if OmegaConf.select(file, "study.arms")]


def test_there_is_a_study_file_for_every_design_and_no_other():
    assert set(STUDIES) - set(OWN_ARMS) == {*DESIGNS, CALIBRATE}


@pytest.mark.parametrize("name", OWN_ARMS)
def test_arms_listed_in_a_study_file_compose_and_differ(name):
    base = tree_of([f"+study={name}"])
    check_arms(study_design(parse(resolved(base))), base)


@pytest.mark.parametrize("name", DESIGNS)
def test_composed_arms_differ_from_their_reference_in_declared_keys_alone(name):
    base = tree_of([f"+study={name}"])
    study = study_design(parse(resolved(base)))
    assert study.names == design(name, lr=base.algorithm.optimizer.lr, updates=updates(base)).names
    reference = next(arm for arm in study.arms if arm.name == study.reference)
    reference_keys = flatten(composed_arm(base, reference).model_dump(mode="json"))
    for arm in study.arms:
        keys = flatten(composed_arm(base, arm).model_dump(mode="json"))
        differing = {key for key in keys if keys[key] != reference_keys[key]} - {"study.arm"}
        assert differing <= study.declared
        assert bool(differing) == (arm is not reference)


def updates(base: DictConfig) -> int:
    return base.algorithm.num_prompts // base.algorithm.minibatch_prompts
