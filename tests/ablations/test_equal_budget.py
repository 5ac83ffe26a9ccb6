"""Budgets: what a step measured, levels reached, and differences at equal budget, worked by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ablations.compare.contrasts import Contrast, difference, pair
from ablations.compare.equal_budget import at_equal_tokens, at_marks, costs, needed, per_step_metric, tokens_used
from ablations.read.curves import TRAINING_ACCURACY, Measured, measured, rising, value_at
from ablations.read.run import Run
from ablations.read.runs import Runs

HELD_OUT = "eval/parity/avg@2"
SAMPLING = difference("left out of DAPO", "", "dynamic_sampling", "dapo", "dapo-dynamic_sampling")


def run_of(
    arm: str,
    accuracy: Callable[[float], float],
    tokens_a_step: Sequence[float],
    seed: int = 0,
    base: int = 0,
    **record: object,
) -> Run:
    """A run whose accuracy is a function of the tokens that it has spent; evaluated before and after training."""
    spent = np.concatenate([[0.0], np.cumsum(tokens_a_step)])
    last = len(tokens_a_step)
    table = pd.DataFrame(
        {
            "gradient_step": 4 * np.arange(last + 1),
            "tokens_generated": spent,
            "wall_s": 2.0 * np.arange(last + 1),
            TRAINING_ACCURACY: [np.nan, *map(accuracy, spent[:-1])],
            HELD_OUT: [accuracy(0), *[np.nan] * (last - 1), accuracy(spent[-1])],
            "sampling/groups_generated": [np.nan, *[64.0] * last],
            "sampling/groups_surplus": [np.nan, *[14.0] * last],
        },
        index=pd.RangeIndex(last + 1, name="step"),
    )
    return Run(Path(), "s", arm, seed, "finished", record, {"task": {"base_seed": base}}, table)


def line(values: Sequence[float], each: float) -> Measured:
    return Measured(np.arange(len(values)), each * np.arange(len(values)), np.array(values))


def test_rollouts_measure_the_policy_before_a_steps_updates_and_evaluations_that_after_them() -> None:
    run = run_of("dapo", lambda spent: spent / 100, [10, 20, 30])
    before = measured(run, TRAINING_ACCURACY, "tokens_generated")
    assert (before.steps.tolist(), before.places.tolist()) == ([0, 1, 2], [0, 10, 30])
    assert before.values.tolist() == [0, 0.1, 0.3]
    after = measured(run, HELD_OUT, "tokens_generated")
    assert (after.steps.tolist(), after.places.tolist()) == ([0, 3], [0, 60])


def test_rollouts_on_problems_that_were_visited_before_are_left_out() -> None:
    run = run_of("dapo", lambda spent: spent, [1] * 5, problems={"train": 150})  # 64 - 14 = 50 problems a step
    assert measured(run, TRAINING_ACCURACY, "step").steps.tolist() == [0, 1, 2]


def test_a_curve_is_not_read_where_nothing_was_measured_within_a_step() -> None:
    evaluations = Measured(np.array([0, 8]), np.array([0.0, 80.0]), np.array([0.5, 0.9]))
    assert value_at(evaluations, 40) is None
    assert value_at(evaluations, 80) == 0.9
    each_step = line([0.5, 0.9], 10)
    assert value_at(each_step, 5) == pytest.approx(0.7)
    assert value_at(each_step, 10.1) is None


def test_two_arms_on_one_curve_of_tokens_differ_by_nothing_though_a_line_between_evaluations_says_15_points() -> None:
    def takes_off(spent: float) -> float:
        return 0.5 + 0.45 / (1 + exp(-(spent - 40) / 6))

    runs = []
    for seed in range(4):
        runs += [
            run_of("dapo", takes_off, [14] * 8, seed, seed),
            run_of("dapo-dynamic_sampling", takes_off, [9] * 8, seed, seed),
        ]
    study = Runs(tuple(runs))
    key = per_step_metric(study, HELD_OUT)
    assert key == TRAINING_ACCURACY
    found = costs(study, SAMPLING, key)
    tokens = found["tokens_generated"]
    assert tokens.used == pytest.approx(112 / 72)
    points = at_equal_tokens(study, SAMPLING, key)
    assert [budget for budget, _ in points] == [63 / 4, 63 / 2, 63 * 3 / 4, 63]  # before a step's updates: 7 of 8 steps
    assert [gap.mean for _, gap in points] == pytest.approx(
        [0] * 4, abs=0.04
    )  # a line between steps, on so steep a curve
    assert tokens_used(study, SAMPLING) == (112, 72)
    assert tokens.needed
    assert tokens.needed.ratio == pytest.approx(1, abs=0.1)  # smoothing costs up to a step on so steep a curve
    straight = np.interp(72, [0, 112], [takes_off(0), takes_off(112)]) - takes_off(72)
    assert straight < -0.15
    updates = found["gradient_step"]
    assert updates.needed
    assert updates.needed.ratio == pytest.approx(9 / 14, abs=0.1)


def test_the_budget_to_the_controls_level_is_worked_by_hand() -> None:
    control, treated = line([0.0, 0.1, 0.2, 0.3, 0.4], 10), line([0.0, 0.2, 0.4, 0.6, 0.8], 30)
    assert rising(line([0.0, 0.3, 0.0, 0.3, 0.6], 10)).values == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert rising(line([0.2, 0.0, 0.1, 0.2, 0.3], 10)).values == pytest.approx([2 / 15, 2 / 15, 2 / 15, 0.2])
    # the control ends on 0.3, the mean of its last three, at 30; the treated run gets there at 30 + 0.5 * 30
    found = needed([[(treated, control)]], ["0"])
    assert found
    assert found.ratio == pytest.approx(45 / 30)
    assert (found.low, found.never, found.pairs) == (None, 0, 1)


def test_a_pair_that_never_gets_there_makes_the_ratio_a_bound_without_an_upper_end() -> None:
    control = line([0.0, 0.1, 0.2, 0.3, 0.4], 10)
    fast, flat = line([0.0, 0.2, 0.4, 0.6, 0.8], 30), line([0.0, 0.05, 0.1, 0.1, 0.1], 30)
    found = needed([[(fast, control)], [(flat, control)]], ["0", "1"])
    assert found
    assert (found.never, found.high) == (1, None)
    assert found.ratio == pytest.approx((45 / 30 * 90 / 30) ** 0.5)
    assert found.low is not None


def test_a_pair_without_a_rise_to_reach_is_left_out() -> None:
    control, flat = line([0.0, 0.1, 0.2, 0.3, 0.4], 10), line([0.3, 0.3, 0.3, 0.3], 10)
    found = needed([[(control, flat)], [(control, control)]], ["0", "0"])
    assert found
    assert (found.left_out, found.pairs) == (1, 1)
    assert needed([[(control, flat)]], ["0"]) is None
    assert needed([[(line([0.5, 0.6, 0.7, 0.8], 10), control)]], ["0"]) is None


ARMS = ("dapo", "dapo-clip_higher", "dapo-dynamic_sampling", "dapo-clip_higher-dynamic_sampling")
MAIN = Contrast("main effects", "x", "dynamic_sampling", {arm: -0.5 if "dynamic" in arm else 0.5 for arm in ARMS})


def test_arms_on_one_curve_of_tokens_differ_by_nothing_at_equal_tokens_however_unequal_their_steps_are() -> None:
    """By steps, one side's arms are at (40, 2) tokens and the other's at (21, 21): averages of a bent curve differ."""

    def bent(spent: float) -> float:
        return min(1.0, (spent / 400) ** 0.5)

    each = dict(zip(ARMS, (40.0, 2.0, 21.0, 21.0), strict=True))
    runs = Runs(tuple(run_of(arm, bent, [each[arm]] * 40, seed, seed) for arm in ARMS for seed in (0, 1)))
    points = at_equal_tokens(runs, MAIN, TRAINING_ACCURACY)
    assert points[-1][0] == 2 * 39  # what the slowest run was measured at
    assert [gap.mean for _, gap in points] == pytest.approx([0] * 4, abs=0.04)  # a line between steps
    assert at_equal_tokens(runs, MAIN, TRAINING_ACCURACY, (60, 79))[-1][0] == 60


def test_each_arm_of_a_factorial_needs_a_multiple_of_what_its_own_twin_needs() -> None:
    """One arm takes twice the tokens of its twin for the same steps and values, the other half of them: on average 1,
    with pairs of arms as pairs and base policies as units."""
    each = dict(zip(ARMS, (40.0, 5.0, 20.0, 10.0), strict=True))
    runs = [
        run_of(arm, lambda spent, own=own: 0.1 * spent / own, [own] * 8, seed, seed)
        for arm, own in each.items()
        for seed in (0, 1)
    ]
    cost = costs(Runs(tuple(runs)), MAIN, TRAINING_ACCURACY)["tokens_generated"]
    assert cost.used == pytest.approx(45 / 30)
    assert cost.needed
    assert (cost.needed.ratio, cost.needed.low, cost.needed.high) == pytest.approx((1, 1, 1))
    assert (cost.needed.pairs, cost.needed.never) == (4, 0)
    one_seed = costs(Runs(tuple(runs[::2])), MAIN, TRAINING_ACCURACY)["tokens_generated"].needed
    assert one_seed
    assert one_seed.low is None  # two pairs of arms of one seed are no two units


def test_half_of_a_factorial_has_no_twins_so_that_nothing_is_said_of_the_tokens_that_it_needs() -> None:
    half = {"dapo": 0.5, "dapo-clip_higher-token_level_loss": 0.5, "dapo-dynamic_sampling-clip_higher": -0.5}
    half["dapo-dynamic_sampling-token_level_loss"] = -0.5
    runs = Runs(tuple(run_of(arm, lambda spent: spent, [1.0] * 5) for arm in half))
    cost = costs(runs, Contrast("main effects", "x", "dynamic_sampling", half), TRAINING_ACCURACY)["tokens_generated"]
    assert (cost.used, cost.needed) == (1, None)


def test_nothing_is_read_before_the_tokens_that_a_fork_starts_with() -> None:
    """It goes on from step 5 of another run, and counts that run's tokens."""
    runs = []
    for seed in range(2):
        for arm, accuracy in (("dapo", 0.7), ("dapo-dynamic_sampling", 0.5)):
            run = run_of(arm, lambda _, accuracy=accuracy: accuracy, [10] * 12, seed, seed)
            runs.append(replace(run, metrics=run.metrics.loc[5:]))
    points = at_equal_tokens(Runs(tuple(runs)), SAMPLING, TRAINING_ACCURACY)
    assert [(budget, pytest.approx(0.2)) for budget in (55, 82.5, 110)] == [(at, gap.mean) for at, gap in points]
    assert not at_equal_tokens(Runs(tuple(runs)), SAMPLING, TRAINING_ACCURACY, (20,))


def test_a_collapsed_arm_ends_what_is_read_at_equal_tokens() -> None:
    def rises(spent: float) -> float:
        return min(1.0, spent / 1000)

    steps = {(arm, seed): 20.0 if "dynamic" in arm else 30.0 for arm in ARMS for seed in (0, 1)}
    steps["dapo-dynamic_sampling", 0] = 2.0  # its answers are short
    runs = Runs(tuple(run_of(arm, rises, [each] * 6, seed, seed) for (arm, seed), each in steps.items()))
    cost = costs(runs, MAIN, TRAINING_ACCURACY)["tokens_generated"]
    points = at_equal_tokens(runs, MAIN, TRAINING_ACCURACY)
    assert points[-1][0] == 10
    assert [gap.mean for _, gap in points] == pytest.approx([0] * 4)
    assert tokens_used(runs, MAIN) == (180, (3 * 120 + 12) / 4)
    # the mean control of seed 0 spends (2 + 20) / 2 = 11 a step, that of seed 1 spends 20
    assert cost.used == pytest.approx((30 / 11 * 30 / 20) ** 0.5)
    assert cost.needed


def test_differences_at_equal_tokens_are_read_at_the_registered_budgets_that_every_pair_was_measured_at() -> None:
    """The technique is ahead by 0.1 up to 40 tokens and behind after; one pair ends at 60, so nothing is said at 80."""

    def ahead(spent: float) -> float:
        return spent / 200 + (0.1 if spent <= 40 else -0.1)

    runs = [run_of("dapo", ahead, [10] * 12, seed, seed) for seed in (0, 1)]
    runs += [run_of("dapo-dynamic_sampling", lambda spent: spent / 200, [10] * n, s, s) for s, n in ((0, 12), (1, 7))]
    points = at_equal_tokens(Runs(tuple(runs)), SAMPLING, TRAINING_ACCURACY, (20, 60, 80))
    assert [(budget, round(gap.mean, 6)) for budget, gap in points] == [(20, 0.1), (60, -0.1)]


def test_a_mark_is_compared_in_the_evaluations_after_the_steps_that_passed_it_and_only_where_all_pairs_have_one() -> (
    None
):
    def evaluated(arm: str, seed: int, tokens_a_step: Sequence[float], values: Sequence[float]) -> Run:
        run = run_of(arm, lambda _: 0.0, tokens_a_step, seed, seed)
        run.metrics[HELD_OUT] = values
        return run

    none = np.nan
    runs = [
        evaluated("dapo", 0, [30, 30, 30], [0.1, none, 0.5, 0.9]),  # passes 40 in step 2
        evaluated("dapo-dynamic_sampling", 0, [45, 45, 45], [0.1, 0.3, none, 0.4]),  # passes 40 in step 1
        evaluated("dapo", 1, [50, 10, 10], [0.1, 0.6, none, 0.8]),
        evaluated("dapo-dynamic_sampling", 1, [50, 10, 10], [0.1, 0.2, none, 0.2]),  # ends below 80
    ]
    ((mark, gap),) = at_marks(Runs(tuple(runs)), SAMPLING, HELD_OUT, (40, 80))
    assert (mark, round(gap.mean, 6), gap.n) == (40, 0.3, 2)


def test_a_difference_of_two_differences_has_its_whole_size_at_marks_and_at_equal_tokens() -> None:
    """(0.9 - 0.5) - (0.4 - 0.3) = 0.3, not the difference of the two sides' means, which is half of it."""
    values = {"dapo": 0.9, "dapo-clip_higher": 0.5, "dapo@epochs=1": 0.4, "dapo-clip_higher@epochs=1": 0.3}
    runs = []
    for arm, value in values.items():
        run = run_of(arm, lambda spent, value=value: value, [10] * 6, 0, 0)
        run.metrics[HELD_OUT] = value
        runs.append(run)
    first, second = "dapo - dapo-clip_higher", "dapo@epochs=1 - dapo-clip_higher@epochs=1"
    contrast = pair("asked", f"({first}) - ({second})", list(values))
    ((_, gap),) = at_marks(Runs(tuple(runs)), contrast, HELD_OUT, (30,))
    points = at_equal_tokens(Runs(tuple(runs)), contrast, TRAINING_ACCURACY, (30,))
    assert [round(found.mean, 6) for found in (gap, points[0][1])] == [0.3, 0.3]
