"""Effects on every metric, and the paired difference over steps: exact on small numbers."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import write_study

from ablations.compare.contrasts import difference
from ablations.compare.effects import effects_on_every_metric
from ablations.compare.statistics import max_t_p
from ablations.figures.difference_figures import difference_band
from ablations.read.outcomes import WORDS, in_words, is_outcome
from ablations.read.runs import Runs, load

CLIP = difference("left out of DAPO", "clip_higher", "clip_higher", "dapo", "dapo-clip_higher")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return load(write_study(tmp_path_factory.mktemp("runs"), "pair", seeds=range(5), steps=12, every=3))


def test_one_metric_has_the_p_of_its_own_t_over_all_flips_and_more_metrics_a_larger_one() -> None:
    # t of (2, 1, 4) is 2.65; of the other three sign patterns only -(2, 1, 4) is as far from 0
    assert max_t_p(np.array([[2.0], [1.0], [4.0]]))[0] == 0.25
    assert max_t_p(np.array([[2.0], [-2.0], [0.5]]))[0] == 1.0
    rng = np.random.default_rng(0)
    one = rng.normal(1, 1, (8, 1))
    alone = max_t_p(one)[0]
    assert max_t_p(np.hstack([one, one]))[0] == alone
    assert max_t_p(np.hstack([one, rng.normal(0, 1, (8, 20))]))[0] > alone


def test_the_effects_of_a_technique_are_sorted_and_leave_out_what_a_switch_reports_of_itself(runs: Runs) -> None:
    found = effects_on_every_metric(runs, [CLIP])
    sizes = [abs(f.estimate.mean / float(f.estimate.sd or 0)) for f in found]
    assert sizes == pytest.approx(sorted(sizes, reverse=True))
    keys = {f.outcome for f in found}
    assert "rollout/entropy" in keys
    assert not any(key.startswith(("clip/", "sampling/", "reward/")) for key in keys)
    assert "rollout/repetition_frac" not in keys  # constant in these runs
    entropy = next(f for f in found if f.outcome == "rollout/entropy")
    assert entropy.estimate.mean > 0
    assert (entropy.kind, entropy.verdict) == ("exploratory", "")


def test_bases_weigh_the_same_in_a_band_however_many_seeds_they_have() -> None:
    table = pd.DataFrame({0: [1.0], 1: [1.2], 2: [1.1], 3: [5.0]}, index=[1])
    band = difference_band(table, {0: "7", 1: "7", 2: "7", 3: "8"})
    assert band["mean"][0] == pytest.approx((1.1 + 5.0) / 2)
    assert (band["high"][0] - band["low"][0]) / 2 == pytest.approx(12.7062 * (5.0 - 1.1) / 2, abs=1e-3)  # t(0.975, 1)
    assert band["n"][0] == 2
    assert difference_band(pd.DataFrame()).empty
    assert np.isnan(difference_band(pd.DataFrame({0: [1.0]}, index=[1]))["low"][0])


def test_every_outcome_of_the_metrics_page_has_a_name_in_words_and_none_is_named_that_is_not_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert [key for key in WORDS if f"| `{key}` |" not in page] == []
    outcomes = [key for part in page.split("| `")[1:] if is_outcome(key := part.split("`")[0])]
    assert len(outcomes) > 25
    assert [key for key in outcomes if in_words(key) == key] == []
