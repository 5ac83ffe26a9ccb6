"""A statement of the paper has one verdict: of the tests that hold over all tests of the same statement."""

from dataclasses import replace

import claims

from ablations.compare.contrasts import Effect, difference
from ablations.compare.statistics import Estimate


def one(mean: float, adjusted: float, expect: str = "up", verdict: str | None = None) -> claims.Test:
    estimate = Estimate(mean, mean - 1, mean + 1, 12, 1.0)
    contrast = difference("f", "a", "a", "on", "off")
    own = Effect(contrast, "k", "k", estimate, 0.01, 0.01, "registered", verdict) if verdict else None
    return claims.Test({"expect": expect}, {}, "k", Effect(contrast, "k", "k", estimate, 0.01), own, None, adjusted)


def test_a_statement_is_decided_by_tests_of_one_sign_and_an_equivalence_needs_every_margin():
    up, down = one(2.0, 0.01, verdict="up"), one(-2.0, 0.01, verdict="down")
    not_up, not_down = replace(up, adjusted=0.9), replace(down, adjusted=0.9)
    assert claims.verdict([up, not_down]) == "agrees"
    assert claims.verdict([not_up, down]) == "contradicts"
    assert claims.verdict([not_up, not_down]) == "not decided"
    assert claims.verdict([up, down]) == "depends on the setting"
    assert claims.verdict([one(2.0, 0.01)]) == "agrees (exploratory)"
    close, none = one(0.1, 0.9, verdict="within the margin"), one(0.1, 0.9, "none", "within the margin")
    assert claims.verdict([close]) == "not reproduced in this setting"
    assert claims.verdict([close, one(0.1, 0.9)]) == "not decided"
    assert claims.verdict([none]) == "agrees"


def test_a_registered_test_that_its_own_family_leaves_undecided_is_not_decided():
    assert not one(2.0, 0.01, verdict="undecided").decided
    assert one(2.0, 0.01, verdict="up").decided
    assert one(2.0, 0.01).decided


def test_adjusting_goes_over_the_tests_of_one_statement_and_counts_what_each_can_have():
    """Twelve bases at 0.001 next to three bases: these cannot reach it, so the p stays as it is."""
    twelve = replace(one(2.0, 1.0).comparison, p=2 / 2**11)
    three = replace(twelve, p=0.25, estimate=replace(twelve.estimate, n=3))
    found = claims.adjusted([replace(one(2.0, 1.0), comparison=c) for c in (three, twelve, three)])
    assert [each.adjusted for each in found] == [0.5, 2 / 2**11, 0.5]
