"""Every claim of the register: runs in which it is true, and runs in which it is not."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import write_study

from dapo_lit.study.compare import verdicts
from dapo_lit.study.compare.claims import register
from dapo_lit.study.compare.verdicts import Claim
from dapo_lit.study.designs import Arm, design
from dapo_lit.study.read.outcomes import amount, unit
from dapo_lit.study.read.runs import Run, Runs, load

ACCURACY = "eval/chain_sum/avg@8"
Course = Callable[[Arm, float], float]
"""A metric of an arm at a share of its budget, 0 at the first step and 1 at the last."""


def claim(number: str, study: str, courses: Mapping[str, Course], seeds: int = 6, **kind: Any) -> Claim:
    runs = study_of(study, courses, seeds, **kind)
    return next(c for c in register(runs, ACCURACY) if c.number == number)


def study_of(
    name: str,
    courses: Mapping[str, Course],
    seeds: int = 6,
    *,
    steps: int = 20,
    ends: Callable[[Arm], int] | None = None,
    spread: float = 0.001,
) -> Runs:
    """Runs of every arm with the given metrics at every step from 0 on, and a little noise of their own."""
    runs = []
    for place, arm in enumerate(design(name).arms):
        for seed in range(seeds):
            noise = np.random.default_rng([seed, place])
            index = pd.Index(range((ends(arm) if ends else steps) + 1), name="step")
            table = pd.DataFrame(
                {
                    key: [course(arm, step / steps) + noise.normal(0, spread) * (step > 0) for step in index]
                    for key, course in courses.items()
                },
                index=index,
            )
            table["wall_s"] = index * 2.0
            config = {"algorithm": {"techniques": dict(arm.techniques)}}
            runs.append(Run(Path(), name, arm.name, seed, "finished", {}, config, table))
    return Runs(tuple(runs))


def on(technique: str, size: float) -> Course:
    """Rises by `size` more with the technique than without."""
    return lambda arm, share: 0.2 + share * (0.2 + size * arm.techniques[technique])


def rising(size: float) -> Course:
    return lambda arm, share: 0.2 + size * share


def setting(key: str, with_it: float, without: float) -> Course:
    """Changes by one amount in the arms that set a key, by another in those that do not."""
    return lambda arm, share: 0.5 + share * (with_it if key in arm.settings else without)


ENTROPY, ALIKE, LENGTH = "rollout/entropy", "rollout/unique_frac", "rollout/length_mean"
UNHEALTHY = ("policy/entropy", LENGTH, "rollout/repetition_frac")
TRUE_AND_FALSE: tuple[tuple[str, str, Mapping[str, Course], Mapping[str, Course]], ...] = (
    (
        "C1",
        "table1",
        {ENTROPY: lambda arm, share: 0.4 - 0.3 * share, ALIKE: rising(-0.1)},
        {ENTROPY: lambda arm, share: 0.4 - 0.1 * share, ALIKE: rising(-0.1)},
    ),
    (
        "C3",
        "leave_one_out",
        {ENTROPY: on("clip_higher", 0.1), ACCURACY: on("clip_higher", 0.1)},
        {ENTROPY: on("clip_higher", -0.1), ACCURACY: on("clip_higher", 0.1)},
    ),
    (
        "C7",
        "leave_one_out",
        {ACCURACY: on("dynamic_sampling", 0.3)},
        {ACCURACY: on("dynamic_sampling", -0.1)},
    ),
    (
        "C8",
        "leave_one_out",
        {key: on("token_level_loss", -0.1) for key in UNHEALTHY},
        {**{key: on("token_level_loss", -0.1) for key in UNHEALTHY}, LENGTH: on("token_level_loss", 0.1)},
    ),
    ("C9", "leave_one_out", {ACCURACY: on("token_level_loss", 0.1)}, {ACCURACY: on("token_level_loss", -0.1)}),
    ("C10", "table1", {ACCURACY: on("overlong_filtering", 0.1)}, {ACCURACY: on("overlong_filtering", -0.1)}),
    (
        "C11",
        "leave_one_out",
        {
            ACCURACY: on("soft_overlong_punishment", 0.1),
            "rollout/truncated_frac": on("soft_overlong_punishment", -0.1),
        },
        {
            ACCURACY: on("soft_overlong_punishment", 0.1),
            "rollout/truncated_frac": on("soft_overlong_punishment", 0.1),
        },
    ),
    (
        "C12",
        "kl_sweep",
        {ACCURACY: setting("algorithm.kl.beta", 0.1 + 0.01, 0.1)},  # a point worse without: within the margin
        {ACCURACY: setting("algorithm.kl.beta", 0.1 + 0.03, 0.1)},
    ),
)


@pytest.mark.parametrize(
    ("number", "study", "courses"), [(n, study, true) for n, study, true, _ in TRUE_AND_FALSE], ids=lambda v: str(v)[:4]
)
def test_a_claim_holds_where_it_is_true(number: str, study: str, courses: Mapping[str, Course]) -> None:
    found = claim(number, study, courses)
    assert found.verdict == "holds", found


@pytest.mark.parametrize(
    ("number", "study", "courses"), [(n, study, no) for n, study, _, no in TRUE_AND_FALSE], ids=lambda v: str(v)[:4]
)
def test_a_claim_fails_where_it_is_not(number: str, study: str, courses: Mapping[str, Course]) -> None:
    found = claim(number, study, courses)
    assert found.verdict == "fails", found


WITHOUT = "dapo-dynamic_sampling"


def test_runs_that_never_get_there_cannot_make_a_claim_hold() -> None:
    """They end early, so their whole budget is a small share of the control's: a bound, and no success."""
    course: Course = lambda arm, share: share * (0.8 if arm.name == "dapo" else 1.0)  # noqa: E731
    runs = study_of("leave_one_out", {ACCURACY: course}, ends=lambda arm: 5 if arm.name == "dapo" else 20)
    found = {c.number: c for c in register(runs, ACCURACY)}
    assert found["C7"].verdict == "undecided", found["C7"]
    assert "6 of them never got there" in found["C7"].evidence


def test_a_seed_whose_control_never_improved_leaves_the_claim_undecided_and_is_counted() -> None:
    runs = study_of("leave_one_out", {ACCURACY: lambda arm, share: share * (0.5 if arm.name == "dapo" else 0.2)})
    for run in runs.of(WITHOUT)[:1]:
        run.metrics[ACCURACY] = np.linspace(0.3, 0.1, len(run.metrics))
    found = next(c for c in register(runs, ACCURACY) if c.number == "C7")
    assert found.verdict == "undecided"
    assert "n = 5, 1 seed without a number" in found.evidence


def test_evidence_is_in_units_of_the_metric_and_of_its_spread() -> None:
    found = claim("C9", "leave_one_out", {ACCURACY: on("token_level_loss", 0.1)}, spread=0.02)
    text = re.fullmatch(
        r"eval/chain_sum/avg@8, left out of DAPO: \+(\d+\.\d) \[.*\] points, exact p .*, d = \+(\d+\.\d), n = 6",
        found.evidence,
    )
    assert text, found.evidence
    assert 8 < float(text[1]) < 12
    assert float(text[2]) > 1


def test_a_register_has_eight_claims_and_says_which_were_not_run(tmp_path: Path) -> None:
    table1 = write_study(tmp_path, "table1", seeds=range(6), samples=2, questions=8)
    claims = {c.number: c for c in register(load(table1), "eval/chain_sum/avg@4")}
    assert list(claims) == ["C1", "C3", "C7", "C8", "C9", "C10", "C11", "C12"]
    assert claims["C12"].verdict == "not run"
    assert claims["C1"].verdict == "holds"


def test_a_claim_needs_six_seeds_on_one_side() -> None:
    assert verdicts.judge([]) == "not run"
    assert verdicts.judge([1.0, 1.1, 0.9, 1.2, 1.0]) == "undecided"
    assert verdicts.judge([1.0, 1.1, 0.9, 1.2, 1.0, 0.8]) == "holds"
    assert verdicts.judge([-1.0, -1.1, -0.9, -1.2, -1.0, -0.8]) == "fails"
    assert verdicts.judge([1.0, -1.1, 0.9, 1.2, 1.0, 0.8]) == "undecided"
    assert verdicts.all_of(["holds", "fails", "undecided"]) == "fails"


def test_only_shares_are_printed_in_points() -> None:
    assert amount("eval/chain_sum/avg@8", 0.253) == amount("eval/chain_sum/truncated_frac", 0.253) == "25.3"
    assert amount("eval/chain_sum/length_mean", 25.3) == "25.3"
    assert unit("eval/chain_sum/length_mean") == "tokens"
