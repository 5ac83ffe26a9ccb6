"""The shipped regimes: each composes with its arms in either order of the options, and has its place on the page."""

import pytest
from omegaconf import DictConfig

from ablations.trainer import flatten
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.cli.study_launch import study_design, with_values
from dapo_lit.config import Config, config_folder, parse

REGIMES = sorted(file.stem for file in (config_folder() / "regime").glob("*.yaml"))
PAGE = (config_folder().parent / "docs" / "regimes.md").read_text()


def composed(*overrides: str) -> tuple[DictConfig, Config]:
    tree = composed_tree(overrides)
    return tree, parse(resolved(tree))


@pytest.mark.parametrize("name", REGIMES)
def test_a_regime_names_itself_and_its_place_on_the_page_and_keeps_its_horizon_when_calibrated(name):
    _, config = composed(f"+regime={name}", "seed=100")
    regime = config.regime
    assert regime is not None
    assert regime.name == name
    assert f"\n## {name}\n" in PAGE
    calibrated = composed(f"+regime={name}", "+study=calibrate", "seed=100")[1]
    assert calibrated.task.base_seed == 100
    assert composed(f"+regime={name}", "seed=1")[1].task.base_seed == 1
    assert config.budget.steps == calibrated.budget.steps == regime.steps
    arms = study_design(calibrated).names
    assert arms[:2] == (regime.reference, f"{regime.reference}@rollout.noise_stream=1")
    assert set(arms[2:]) == {a for c in regime.techniques.values() for a in c.doses} - {regime.reference}
    for control in regime.techniques.values():
        assert control.steps is not None
        assert control.steps[0] <= control.steps[1] <= regime.steps


@pytest.mark.parametrize("name", REGIMES)
def test_the_doses_of_a_regime_differ_in_nothing_but_their_own_settings(name):
    tree, config = composed(f"+regime={name}", "+study=calibrate", "seed=100")
    assert composed("+study=calibrate", f"+regime={name}", "seed=100")[1] == config
    arms = {
        arm.name: flatten(parse(resolved(with_values(tree, arm))).model_dump()) for arm in study_design(config).arms
    }
    assert config.regime is not None
    for control in config.regime.techniques.values():
        weakest, *others = (arms[dose] for dose in control.doses)
        for other in others:
            differing = {key for key in weakest if weakest[key] != other[key]} - {"study.arm"}
            assert differing
            assert all(key.startswith("algorithm.") for key in differing)
