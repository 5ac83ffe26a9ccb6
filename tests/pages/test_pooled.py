"""Effects around DAPO: the mean over sets of base policies, and the refusal of a size from one set."""

from pathlib import Path

import claims
import inline
import numpy as np
import pooled
import pytest
from around import AROUND, name, normal
from cells import EXPERIMENTS, between, cells

from ablations.compare.contrasts import Contrast
from ablations.compare.statistics import t_interval


def test_the_mean_over_three_sets_is_the_one_worked_out_by_hand():
    # Means 2, 6, 10; squares within 2 + 8 + 2 over 8 - 3 values: 2.4 a base policy, so 1.2, 0.6, 1.2 a mean.
    # Fixed weights 5/6, 5/3, 5/6: mean 6, Q = 2 x 16 x 5/6 = 80/3, and (80/3 - 2) / (10/3 - 5/4) = 11.84 between sets.
    found = pooled.random_effects([[1, 3], [4, 6, 8, 6], [9, 11]])
    assert (found.mean, found.between**2) == (pytest.approx(6), pytest.approx(11.84))
    # Weights 1/13.04, 1/12.44, 1/13.04. Their squares about the mean: 2 x 16 / 13.04, over 2 is 1.227; sum 0.23376.
    # t(0.975, 2) = 4.3027: 4.3027 x sqrt(1.227 / 0.23376) = 9.8577.
    assert (found.low, found.high) == (pytest.approx(6 - 9.8577, abs=1e-3), pytest.approx(6 + 9.8577, abs=1e-3))
    assert (found.sets, found.bases) == (3, 8)


def test_sets_of_one_size_give_the_t_interval_of_their_means():
    sets = [[1.0, 3.0], [8.0, 10.0], [3.0, 5.0]]
    found, plain = pooled.random_effects(sets), t_interval([2.0, 9.0, 4.0])
    assert (found.mean, found.low, found.high) == pytest.approx((plain.mean, plain.low, plain.high))


def test_sets_that_agree_by_chance_are_no_narrower_than_base_policies_alone():
    sets = [[-3.0, 3.0], [-4.0, 4.0], [-5.0, 5.0]]  # means of 0: their own spread would give an interval of width 0
    found = pooled.random_effects(sets)
    assert found.between == 0
    assert found.high == pytest.approx(4.3027 * (2 * (9 + 16 + 25) / 3 / 6) ** 0.5, rel=1e-4)


def test_the_interval_covers_a_set_to_come_as_often_as_it_says():
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        sets = [draw.normal(draw.normal(0, 0.5), 1, size) for size in (12, 12, 12, 4, 3)]
        found = pooled.random_effects(sets)
        covered += found.low <= 0 <= found.high
    assert 0.93 <= covered / 2000 <= 0.975


@pytest.mark.parametrize(
    "mark",
    [
        "effect factorial_joint dapo:dapo-dynamic_sampling points",
        "effect penalised_answers/joint dapo:dapo@overlong.punish=none points",
        "effect tuned_joint/compared dapo@optimizer.lr=0.0001:dapo-token_level_loss@optimizer.lr=0.0002 mean",
        "effect clip_by_reuse dapo@epochs=1:dapo-clip_higher@epochs=1 points",
        'effect factorial_joint "(dapo - dapo-dynamic_sampling) - (dapo-soft_overlong_punishment - '
        'dapo-soft_overlong_punishment-dynamic_sampling)" points',
        "effect four_techniques_joint dynamic_sampling points",
        "on rollout/accuracy factorial_joint dapo:dapo-dynamic_sampling points",
        "where dynamic_sampling soft_overlong_punishment on points",
    ],
)
def test_a_page_states_no_effect_around_dapo_from_one_set_of_base_policies(mark: str):
    with pytest.raises(SystemExit, match="one set of base"):
        inline.text(mark)
    assert inline.text(mark, own_study=True)  # the page of the study says what it found


def test_what_makes_parts_of_pages_gets_no_effect_around_dapo_from_one_set_either():
    with pytest.raises(SystemExit, match="one set of base"):
        between("factorial_joint", "dapo", "dapo-dynamic_sampling")
    for _, tests in claims.judged():
        for test in tests:
            assert test.around_dapo == (test.claim["outcome"] == "accuracy" and "left out" in test.study["name"])
    rows = [row for row in claims.table().splitlines() if "over sets" in row]
    assert rows
    assert not [row for row in rows if "points" in row]


def test_settings_of_one_side_and_main_effects_are_other_questions():
    assert name(Contrast("", "", None, {"dapo@dynamic_sampling.max_rounds=1": 1, "dapo-dynamic_sampling": -1})) is None
    assert name(Contrast("", "", None, {"naive_grpo+clip_higher": 1, "naive_grpo": -1})) is None
    assert name(Contrast("", "", None, {"dapo": -1, "dapo-clip_higher": 1})) == "clip_higher"  # the other way round
    assert inline.text("effect factorial_joint dynamic_sampling points").startswith("+6.2")


def test_a_task_with_one_set_has_no_mean():
    with pytest.raises(SystemExit, match="1 set of base policies"):
        pooled.over_sets("sums, in a page", "dynamic_sampling")


def test_no_two_sets_of_a_mean_share_a_base_policy():
    for task, each in pooled.SETS.items():
        for effect in AROUND:
            found = [pooled.of_set(task, place, effect) for place in range(len(each))]
            bases = [base for one in found if one for base in set(one.bases)]
            assert len(bases) == len(set(bases)), (task, effect)


def studies_with_a_neighbour_of_dapo() -> list[str]:
    """Folders of packed cells that hold both arms of some effect around DAPO under equal settings."""
    found = []
    for file in sorted(EXPERIMENTS.rglob("cells.parquet")):
        place = str(file.parent.relative_to(EXPERIMENTS)).removesuffix("/runs")
        # Nobody looks at a study that has not ended. Each of transfer's regimes is another one, with a mean of its own.
        if not {"archive", "smollm2_forks", "unfinished", "transfer"} & {*Path(place).parts} and "step_0" not in place:
            arms = [normal(arm) for arm in cells(place).arms if arm.startswith("dapo")]
            if any(
                set(weights) <= {on for on, own in arms if own == settings}
                for weights in AROUND.values()
                for _, settings in arms
            ):
                found.append(place)
    return found


def test_every_packed_study_with_a_neighbour_of_dapo_is_a_set():
    known = {one.folder for each in pooled.SETS.values() for one in each}
    assert set(studies_with_a_neighbour_of_dapo()) <= known
