"""The backtest of rules: on tables with known answers, and a row of its committed JSON computed anew."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import json  # noqa: E402

import decide_calibration  # noqa: E402
import referee  # noqa: E402

from ablations.compare.deciding import SHARES, SHIPPED  # noqa: E402
from ablations.compare.referee import UNPAIRED_VARIANCE  # noqa: E402

GAINS = (5.0, -4.0, 3.0, -6.0, 0.0)


def table(noise: float) -> np.ndarray:
    """Accuracies of all 32 arms on twelve bases: techniques add up, bases differ by a lot, runs by `noise`."""
    rng = np.random.default_rng(0)
    effect = np.array([sum(gain for bit, gain in enumerate(GAINS) if arm >> bit & 1) for arm in range(32)])
    return 40 + effect[:, None] + rng.normal(0, 10, (1, 12)) + rng.normal(0, noise, (32, 12))


@pytest.mark.parametrize("family", ["pairs", "value", "value, flat prior", "halving", "race by value"])
def test_without_noise_every_rule_with_pairs_ends_at_the_best_arm(family):
    rule = [*referee.rules()[family].values()][-1]
    done = referee.played(rule, table(0.0), 1, 20)
    assert done["regret"] == pytest.approx(0, abs=1e-9)
    assert done["wrong"] == 0


def test_runs_on_other_seeds_take_the_difference_of_bases_for_an_effect():
    done = referee.played(referee.apart(1), table(0.0), 1, 200)
    assert done["wrong"] > 0.2


def test_a_run_is_paid_once_and_pairs_share_the_incumbents():
    (loop,) = referee.loops(table(0.0), 1, 1)
    referee.greedy(1)(loop)
    assert len(loop.paid) == 1 + 5  # naive GRPO, and each change on the same base: the incumbent's run is there
    (other,) = referee.loops(table(0.0), 1, 1)
    referee.exact(0.05)(other)
    assert len(other.paid) == 6 * 6


def test_the_truth_is_of_bases_that_no_rule_saw():
    for loop in referee.loops(table(1.0), 1, 20):
        assert sorted([*loop.drawn, *loop.held]) == list(range(12))
        referee.greedy(6)(loop)
        assert {base for _, base in loop.paid} == {*loop.drawn}


def test_wrong_decisions_are_counted_by_what_the_change_does_to_the_arm_at_hand():
    (loop,) = referee.loops(table(0.0), 1, 1)
    for bit in range(5):
        loop.decide(1 << bit, bit in (0, 1))  # keeps +5 and -4, drops +3, -6 and 0
    found = referee.summary([loop])
    assert (found["wrong"], found["harmful_kept"], found["useful_dropped"]) == (2 / 4, 1 / 2, 1 / 2)
    assert found["regret"] == pytest.approx(8 - 1)


def test_a_curve_is_read_between_its_settings():
    curve = [{"runs": 10.0, "regret": 3.0}, {"runs": 20.0, "regret": 1.0}]
    assert [referee.at_runs(curve, "regret", runs) for runs in (5, 15, 30)] == [3.0, 2.0, 1.0]


def test_a_committed_row_is_what_the_runs_give():
    committed = json.loads((ROOT / "benchmarks" / "results" / "referee.json").read_text())
    study, switched = referee.TASKS["programs"]
    found = referee.played(referee.value(share=0.02), referee.accuracies(study), switched, committed["loops"])
    assert referee.rounded(found) == committed["tasks"]["programs"]["rules"]["value"]["share 0.02"]


def test_the_prior_and_the_gain_from_pairing_are_what_the_committed_runs_show():
    found = json.loads((ROOT / "benchmarks" / "results" / "referee.json").read_text())["noise"]
    assert found == {
        name: referee.rounded(referee.noise(referee.accuracies(study), switched))
        for name, (study, switched) in referee.TASKS.items()
    }
    chosen_on = [found[name] for name in ("joint", "joint_pairs", "programs")]
    spread = SHIPPED.pairs**-0.5
    assert min(row["spread"] for row in chosen_on) <= spread <= max(row["spread"] for row in chosen_on)
    assert min(row["freedom"] for row in chosen_on) <= SHIPPED.weight <= max(row["freedom"] for row in chosen_on)
    saved = tuple(round(found[name]["unpaired_variance"], 1) for name in ("programs", "joint"))
    assert saved == UNPAIRED_VARIANCE


def test_the_prior_on_noise_is_what_the_committed_calibrations_show():
    committed = json.loads((ROOT / "benchmarks" / "results" / "decide_calibration.json").read_text())
    changes = decide_calibration.measured()
    prior = decide_calibration.fitted(changes)
    assert (round(prior.sd, 5), round(prior.weight, 3)) == tuple(committed["prior"].values())
    assert (round(prior.sd, 3), round(prior.weight, 1)) == (SHARES.sd, SHARES.weight)
    assert len({change.task for change in changes}) == 11


def test_the_regret_said_is_within_a_tenth_of_the_regret_found_on_tasks_the_prior_does_not_know():
    committed = json.loads((ROOT / "benchmarks" / "results" / "decide_calibration.json").read_text())["left_out"]
    for row in committed.values():
        assert row["drawn"]["said"] == pytest.approx(row["drawn"]["found"], rel=0.1)
    assert committed["2"]["said_without"] > 2 * committed["2"]["drawn"]["found"]


def test_a_fit_finds_the_prior_that_changes_were_drawn_from():
    """300 tasks of three changes, twelve pairs each: variances of 0.05^2 with three degrees of freedom."""
    rng = np.random.default_rng(2)
    sds = 0.05 * (3 / rng.chisquare(3, 900)) ** 0.5 * (rng.chisquare(11, 900) / 11) ** 0.5
    drawn = [decide_calibration.Measured(str(i // 3), str(i), 12, 0.0, float(sd)) for i, sd in enumerate(sds)]
    prior = decide_calibration.fitted(drawn)
    assert (prior.sd, prior.weight) == pytest.approx((0.05, 3), rel=0.15)


def test_the_loss_that_a_sign_risks_is_the_one_that_is_drawn():
    rng = np.random.default_rng(3)
    effects = rng.normal(0, 1, 200_000)
    seen = effects + rng.normal(0, 3**-0.5, 200_000)
    wrong = np.sign(seen) != np.sign(effects)
    assert decide_calibration.lost(3) == pytest.approx(float(np.mean(np.abs(effects) * wrong)), rel=0.03)


def test_the_spread_of_effects_is_without_what_sampling_adds():
    """200 effects of 2 standard deviations of a pair's noise, on twelve bases."""
    rng = np.random.default_rng(1)
    worth = rng.normal(0, 2, (2, 200))
    rows = [referee.noise(np.stack([noise[0], noise[1] + effect]), 1)["spread"] ** 2 for effect, noise in
            zip(worth[0], rng.normal(0, 0.5**0.5, (200, 2, 12)), strict=True)]  # fmt: skip
    assert np.nanmean(rows) ** 0.5 == pytest.approx(float(np.sqrt(np.mean(worth[0] ** 2))), rel=0.25)
