"""Every claim of the register: runs in which it is true, and runs in which it is not."""

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


def claim(number: str, study: str, courses: Mapping[str, Course], seeds: int = 5, **kind: Any) -> Claim:
    runs = study_of(study, courses, seeds, **kind)
    return next(c for c in register(runs, ACCURACY) if c.number == number)


def study_of(
    name: str,
    courses: Mapping[str, Course],
    seeds: int = 5,
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


def zigzag(arm: Arm, share: float) -> float:
    """Has nothing to do with what rises steadily."""
    return 0.3 + 0.1 * (round(20 * share) % 2)


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
        "C2",
        "table1",
        {"clip/high_prob_mean": lambda arm, share: 0.15 if not arm.techniques["clip_higher"] else 0.5},
        {"clip/high_prob_mean": lambda arm, share: 0.25 if not arm.techniques["clip_higher"] else 0.1},
    ),
    (
        "C3",
        "leave_one_out",
        {ENTROPY: on("clip_higher", 0.1), ACCURACY: on("clip_higher", 0.1)},
        {ENTROPY: on("clip_higher", -0.1), ACCURACY: on("clip_higher", 0.1)},
    ),
    (
        "C4",
        "clip_sweep",
        {key: setting("algorithm.clip.low", -0.2, 0.0) for key in (ENTROPY, ALIKE)},
        {key: setting("algorithm.clip.low", 0.2, 0.0) for key in (ENTROPY, ALIKE)},
    ),
    (
        "C5",
        "table1",
        {"rollout/groups_all_correct_frac": rising(0.2)},
        {"rollout/groups_all_correct_frac": rising(-0.1)},
    ),
    (
        "C6",
        "table1",
        {"rollout/groups_all_correct_frac": rising(0.2), "optim/grad_noise": rising(1.0)},
        {"rollout/groups_all_correct_frac": rising(0.2), "optim/grad_noise": rising(-0.2)},
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
    (
        "C13",
        "table1",
        {ACCURACY: rising(0.2), "rollout/reward": zigzag},
        {ACCURACY: rising(0.2), "rollout/reward": rising(0.2)},
    ),
    (
        "C14",
        "table1",
        {LENGTH: lambda arm, share: 20 + share * (5 if arm.name == "dapo" else -5)},
        {LENGTH: rising(5)},
    ),
    (
        "C15",
        "table1",
        {key: lambda arm, share: share * 0.1 * sum(arm.techniques.values()) for key in (ENTROPY, ACCURACY)},
        {
            ENTROPY: lambda arm, share: share * -0.1 * sum(arm.techniques.values()),
            ACCURACY: lambda arm, share: share * 0.1 * sum(arm.techniques.values()),
        },
    ),
    ("C16", "table1", {"rollout/reflection_frac": rising(0.2)}, {"rollout/reflection_frac": rising(-0.1)}),
    (
        "C18",
        "table1",
        {ACCURACY: lambda arm, share: share * 0.1 * sum(arm.techniques.values())},
        {ACCURACY: lambda arm, share: share * 0.1 * (sum(arm.techniques.values()) - 2 * arm.techniques["clip_higher"])},
    ),
    (
        "C19",
        "table1",
        {ACCURACY: lambda arm, share: share * (0.5 if arm.name == "dapo" else 0.2)},
        {ACCURACY: lambda arm, share: share * (0.3 if arm.name == "dapo" else 0.2)},
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


@pytest.mark.parametrize(("first", "last", "verdict"), [(0.01, 0.2, "holds"), (0.2, 0.01, "fails")])
def test_spread_is_how_far_runs_lie_from_the_median_seed(first: float, last: float, verdict: str) -> None:
    runs = study_of("table1", {ACCURACY: rising(0.0)}, seeds=12)
    for run in runs:
        away = np.random.default_rng([7, run.seed]).normal()
        run.metrics[ACCURACY] = 0.5 + away * np.linspace(first, last, len(run.metrics))
    found = next(c for c in register(runs, ACCURACY) if c.number == "C17")
    assert found.verdict == verdict, found


def test_runs_that_never_get_there_cannot_make_a_claim_hold() -> None:
    """They end early, so their whole budget is a small share of the reference's: a bound, and no success."""
    short = {"dapo": 5}
    course: Course = lambda arm, share: share * (0.8 if arm.name == "dapo" else 1.0)  # noqa: E731
    runs = study_of("table1", {ACCURACY: course}, ends=lambda arm: short.get(arm.name, 20))
    found = {c.number: c for c in register(runs, ACCURACY)}
    assert found["C19"].verdict == "undecided", found["C19"]
    assert "5 of them never got there" in found["C19"].evidence


def test_a_seed_whose_control_never_improved_leaves_the_claim_undecided_and_is_counted() -> None:
    runs = study_of("table1", {ACCURACY: lambda arm, share: share * (0.5 if arm.name == "dapo" else 0.2)})
    for run in runs.of("naive_grpo")[:1]:
        run.metrics[ACCURACY] = np.linspace(0.3, 0.1, len(run.metrics))
    found = next(c for c in register(runs, ACCURACY) if c.number == "C19")
    assert found.verdict == "undecided"
    assert "n = 4, 1 seed without a number" in found.evidence


def test_training_reward_is_set_against_held_out_problems_at_enough_checkpoints_alone() -> None:
    courses = {ACCURACY: rising(0.2), "rollout/reward": rising(0.2), "rollout/accuracy": rising(0.2)}
    runs = study_of("table1", courses, steps=6)
    few = next(c for c in register(runs, ACCURACY) if c.number == "C13")
    assert (few.verdict, few.evidence[:21]) == ("undecided", "at most 7 evaluations")
    itself = next(c for c in register(study_of("table1", courses), "rollout/accuracy") if c.number == "C13")
    assert itself.verdict == "not run"


def test_that_every_technique_adds_needs_every_rung() -> None:
    adds: Mapping[str, Course] = {ACCURACY: lambda arm, share: share * 0.1 * sum(arm.techniques.values())}
    assert claim("C18", "add_one_in", adds).verdict == "not run"


def test_base_policies_that_differ_do_not_make_entropy_go_with_results() -> None:
    """Between seeds both differ together; within a seed, where arms begin alike, they do not."""
    holds = 0
    for draw in range(20):
        runs = study_of("leave_one_out", {ACCURACY: rising(0.0), ENTROPY: rising(0.0)})
        for place, run in enumerate(runs):
            noise = np.random.default_rng([draw, place])
            base = np.random.default_rng([draw, 1000 + run.seed]).normal(0, 0.2)
            for key in (ACCURACY, ENTROPY):
                run.metrics[key] = np.linspace(0, base + noise.normal(0, 0.02), len(run.metrics))
        found = next(c for c in register(runs, ACCURACY) if c.number == "C15")
        holds += found.verdict in ("holds", "fails")
    assert holds <= 4  # 1 expected; all 20 if runs were compared between seeds


def test_a_register_has_nineteen_claims_and_says_which_were_not_run(tmp_path: Path) -> None:
    table1 = write_study(tmp_path, "table1", seeds=range(4), samples=2, questions=8)
    claims = {c.number: c for c in register(load(table1), "eval/chain_sum/avg@4")}
    assert list(claims) == [f"C{n}" for n in range(1, 20)]
    assert claims["C4"].verdict == claims["C12"].verdict == "not run"
    assert claims["C1"].verdict == claims["C5"].verdict == "holds"


def test_a_claim_needs_three_seeds_and_an_interval_on_one_side() -> None:
    assert verdicts.judge([]) == "not run"
    assert verdicts.judge([1.0, 1.1]) == "undecided"
    assert verdicts.judge([1.0, 1.1, 0.9]) == "holds"
    assert verdicts.judge([-1.0, -1.1, -0.9]) == "fails"
    assert verdicts.judge([1.0, -1.1, 0.9]) == "undecided"
    assert verdicts.all_of(["holds", "fails", "undecided"]) == "fails"


def test_only_shares_are_printed_in_points() -> None:
    assert amount("eval/chain_sum/avg@8", 0.253) == amount("eval/chain_sum/truncated_frac", 0.253) == "25.3"
    assert amount("eval/chain_sum/length_mean", 25.3) == "25.3"
    assert unit("eval/chain_sum/length_mean") == "tokens"
