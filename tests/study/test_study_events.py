"""Times to emergence and question-level errors against hand-worked numbers."""

import numpy as np
import pandas as pd
import pytest

from dapo_lit.study.compare.emergence import Event, count_pairs, first_passage, restricted_mean_time
from dapo_lit.study.compare.questions import error_parts, score_array


def test_first_passage_is_the_first_step_above_the_threshold_or_censored_at_the_last() -> None:
    rising = pd.Series([0.1, 0.5, 0.6, 0.4], index=[1, 2, 3, 4])
    assert first_passage(rising) == Event(3, True)
    assert first_passage(rising[:2]) == Event(2, False)


@pytest.mark.parametrize(
    ("events", "area"),
    [
        ([(10, True), (30, True), (60, False), (60, False)], (10 + 30 + 60 + 60) / 4),
        ([(80, True), (20, True)], (60 + 20) / 2),
        ([(10, False), (20, True), (60, False)], 20 + 0.5 * 40),  # at 20 one of the two still watched has it
    ],
    ids=["all watched to the horizon", "an event after the horizon", "a run that ended early"],
)
def test_the_restricted_mean_time_is_the_area_under_the_survival(events: list[tuple[int, bool]], area: float) -> None:
    assert restricted_mean_time([Event(*event) for event in events], 60)[0] == pytest.approx(area)


def test_the_error_of_the_restricted_mean_is_greenwoods_and_a_horizon_that_nobody_reached_is_refused() -> None:
    events = [Event(10, True), Event(30, True), Event(60, False), Event(60, False)]
    # remaining areas 0.75 * 20 + 0.5 * 30 = 30 and 0.5 * 30 = 15; 30^2 / (4 * 3) + 15^2 / (3 * 2)
    assert restricted_mean_time(events, 60)[1] ** 2 == pytest.approx(900 / 12 + 225 / 6)
    with pytest.raises(ValueError, match="horizon"):
        restricted_mean_time([Event(10, True), Event(40, False)], 60)


def test_pairs_are_counted_by_outcome() -> None:
    assert count_pairs([True, True, False, False], [True, False, True, False]) == (1, 1, 1, 1)


def test_errors_from_seeds_questions_and_sampling_are_hand_worked() -> None:
    scores = np.array([[[1, 1], [0, 1]], [[1, 0], [0, 0]]], dtype=float)  # [2 seeds, 2 questions, 2 samples]
    parts = error_parts(scores)
    assert parts.mean == 0.5
    assert parts.seeds == pytest.approx(0.25)  # 0.75 and 0.25: sd 0.35355, over sqrt(2)
    assert parts.questions == pytest.approx(0.25)  # 0.75 and 0.25 as well
    assert parts.sampling == pytest.approx((0.25 / 8) ** 0.5)  # variances 0, 0.5, 0.5, 0: mean 0.25, over 8 answers


def test_evaluations_on_other_questions_are_refused() -> None:
    table = pd.DataFrame({"problem_id": ["a", "b"], "sample_index": [0, 0], "correct": [True, False]})
    other = table.assign(problem_id=["a", "c"])
    assert score_array([table, table]).shape == (2, 2, 1)
    with pytest.raises(ValueError, match="different questions"):
        score_array([table, other])
