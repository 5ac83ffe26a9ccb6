"""The design for a budget: seeds before arms, and what it sees from the spread that committed studies measured."""

import pytest

from ablations.compare.advice import Found, findings
from ablations.compare.affordable import DESIGNS, Affordable, affordable, committed_sds, sight
from ablations.compare.statistics import paired_t_power
from ablations.designs import ARMS, read_arm

ALIKE = {arm.name: 1.0 for design in DESIGNS for arm in ARMS[design]()}


def test_arms_that_cost_more_are_billed_as_they_cost():
    """Half of the combinations have dynamic sampling: with it at three minutes a run, a seed takes twice as long."""
    minutes = {name: 3.0 if "dynamic_sampling" in read_arm(name).on else 1.0 for name in ALIKE}
    assert affordable(minutes, 2, None) == Affordable("half_fraction", 6, 96.0)
    assert affordable(minutes, 2, 95.0).design == "leave_one_out"


def test_twelve_seeds_come_before_all_combinations_and_a_design_never_exceeds_its_budget():
    for budget in (18.0, 36.0, 47.9, 48.0, 60.0, 96.0, 191.0, 192.0, 1000.0):
        choice = affordable(ALIKE, 2, budget)
        assert choice is not None
        assert choice.minutes <= budget
        assert 6 <= choice.seeds <= 12
        assert choice.minutes == choice.runs / 2
    assert affordable(ALIKE, 2, 60.0) == Affordable("half_fraction", 7, 56.0)
    assert affordable(ALIKE, 2, 191.0) == Affordable("half_fraction", 12, 96.0)
    assert affordable(ALIKE, 2, None) == Affordable("half_fraction", 6, 48.0)
    assert affordable(ALIKE, 2, 17.9) is None


def test_what_it_sees_is_found_with_a_power_of_80_percent():
    for design in ("cube", "half_fraction", "leave_one_out"):
        choice = Affordable(design, 9, 1.0)
        assert paired_t_power(choice.finds(2.0) / 2.0, 9) == pytest.approx(0.8, abs=1e-6)
    assert Affordable("half_fraction", 6, 1.0).noise(4.0) == pytest.approx(4.0 / 8**0.5)


def test_the_spread_is_that_of_committed_studies_of_the_design():
    found = findings()
    assert (
        len(committed_sds("cube", found)) == 20
    )  # five effects of each study of twelve bases: one whole cube and three halves
    assert committed_sds("cube", found) == committed_sds("half_fraction", found)
    assert len(committed_sds("leave_one_out", found)) > 3
    row = {"technique": "clip_higher", "folder": "f", "measured": {}, "verdict": "", "points": 0, "low": 0, "high": 0}
    rows = [Found(**row, study="half factorial, x", n=12, sd=sd) for sd in (1.0, 2.0, 4.0)]
    assert "with 12 seeds, effects of 1.8 points of accuracy (0.9 to 3.6)" in sight(
        Affordable("half_fraction", 12, 1.0), rows
    )
