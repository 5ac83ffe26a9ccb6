"""Arms of the studies in conf/study/ compose and differ from their reference in declared keys only."""

import pytest

from ablations.trainer import flatten
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.cli.study_launch import check_arms, study_design, with_values
from dapo_lit.config import parse
from dapo_lit.config.shipped import group_file, known_choices

STUDIES = [name for name in known_choices("study") if name not in ("calibrate", "fork")]


@pytest.mark.parametrize("name", STUDIES)
def test_composed_arms_differ_from_their_reference_in_declared_keys_only(name):
    base = composed_tree([f"+study={name}"])
    study = study_design(parse(resolved(base)))
    check_arms(study, base)
    reference = next(arm for arm in study.arms if arm.name == study.reference)
    reference_keys = flatten(parse(resolved(with_values(base, reference))).model_dump(mode="json"))
    for arm in study.arms:
        keys = flatten(parse(resolved(with_values(base, arm))).model_dump(mode="json"))
        differing = {key for key in keys if keys[key] != reference_keys[key]} - {"study.arm"}
        assert differing <= study.declared
        assert bool(differing) == (arm is not reference)


def test_a_study_is_named_as_its_file_and_built_on_what_all_share():
    files = {name: group_file("study", name) for name in known_choices("study")}
    assert {name: file["study"]["name"] for name, file in files.items()} == {name: name for name in files}
    assert [name for name, file in files.items() if "shared/default" not in file["defaults"]] == []
