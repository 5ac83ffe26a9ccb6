"""The controller of the entropy bonus, worked out by hand and against TRL's lines."""

import pytest

from dapo_lit.config import ConfigError
from dapo_lit.objective.entropy_control import towards_target
from dapo_lit.switches.algorithm import objective

TARGET = ("algorithm.entropy.control=target", "++algorithm.entropy.options={target: 0.5, delta: 0.25, most: 0.5}")


def test_the_coefficient_climbs_below_the_target_and_falls_above_it_where_there_is_no_bonus(compose):
    control = objective(compose(*TARGET).algorithm, 8).entropy_control
    assert control is not None
    coefficient, bonuses = 0.0, []
    for entropy in (0.75, 0.5, 0.25, 0.25, 0.75, 0.75, 0.75, 0.25):
        coefficient, bonus = control(coefficient, entropy)
        bonuses.append((coefficient, bonus))
    # Held at 0 and at `most`; at the target itself it climbs, as in TRL's `world_entropy <= entropy_target`.
    assert bonuses == [(0, 0), (0.25, 0.25), (0.5, 0.5), (0.5, 0.5), (0.25, 0), (0, 0), (0, 0), (0.25, 0.25)]


def test_it_is_the_rule_of_trl_once_a_step():
    """grpo_trainer.py, `_compute_loss`: the coefficient after an update, and what the next one applies."""
    coefficient = mine = 0.0
    for step in range(60):
        entropy = 0.2 + 0.1 * ((7 * step) % 5 - 2)
        if entropy <= 0.2:
            coefficient = min(coefficient + 0.005, 0.02)
        else:
            coefficient = max(coefficient - 0.005, 0.0)
        applied = coefficient if entropy <= 0.2 else 0.0
        mine, bonus = towards_target(mine, entropy, target=0.2, delta=0.005, most=0.02)
        assert (mine, bonus) == (coefficient, applied)


def test_without_a_controller_the_bonus_is_constant(compose):
    found = objective(compose("algorithm.entropy.bonus=0.25").algorithm, 8)
    assert (found.entropy_bonus, found.entropy_control) == (0.25, None)


def one_number(coefficient, entropy):
    return coefficient


def below(coefficient, entropy, *, pull: float = 1.0):
    return coefficient, -pull


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (("target",), "entropy.control=target target entropy.options.target"),
        (("target", "{target: -1}"), "entropy.options.target=-1 at least 0"),
        (("target", "{target: 1, dleta: 1}"), "entropy.options.dleta delta"),
        (("test_entropy_control.one_number",), "one_number two numbers 0.01"),
        (("test_entropy_control.below", "{pull: 2}"), "below at least 0 -2"),
        (("targets",), "entropy.control=targets target package.module.function"),
    ],
)
def test_a_controller_that_cannot_be_used_is_refused_by_its_key(compose, settings, keys):
    control, options = (*settings, "{}")[:2]
    config = compose(f"algorithm.entropy.control={control}", f"++algorithm.entropy.options={options}")
    with pytest.raises(ConfigError) as refused:
        objective(config.algorithm, 8)
    assert [key for key in keys.split() if key not in str(refused.value)] == []
