"""Published evidence has its sources, and every technique has evidence and a page that fits the register."""

import claims
import yaml

from dapo_lit.study.compare.contrasts import Effect, difference
from dapo_lit.study.compare.statistics import Estimate


def test_the_page_of_claims_has_the_rows_and_verdicts_that_the_committed_studies_give():
    tree, text = yaml.safe_load((claims.PAGE.with_name("claims.yaml")).read_text()), claims.PAGE.read_text()
    statements = claims.judged(tree)
    assert [claim["verdict"] for claim in tree["claims"]] == [verdict for verdict, _ in statements]
    assert claims.page(text, claims.table(statements)) == text, "python docs/site/claims.py rewrites the table"
    assert claims.findings(statements) == claims.FINDINGS.read_text(), "python docs/site/claims.py rewrites the file"


def test_a_statement_is_decided_by_tests_of_one_sign_and_an_equivalence_needs_every_margin():
    def test(mean: float, expect: str = "up", verdict: str | None = None) -> claims.Test:
        estimate = Estimate(mean, mean - 1, mean + 1, 12, 1.0)
        contrast = difference("f", "a", "a", "on", "off")
        own = Effect(contrast, "k", "k", estimate, 0.01, 0.01, "registered", verdict) if verdict else None
        return claims.Test({"expect": expect}, {}, "k", Effect(contrast, "k", "k", estimate, 0.01), own, None)

    up, down = test(2.0, verdict="up"), test(-2.0, verdict="down")
    assert claims.verdict([up, down], [0.01, 0.9]) == "agrees"
    assert claims.verdict([up, down], [0.9, 0.01]) == "contradicts"
    assert claims.verdict([up, down], [0.01, 0.01]) == "not decided"
    assert claims.verdict([test(2.0)], [0.01]) == "agrees (exploratory)"
    close, none = test(0.1, verdict="within the margin"), test(0.1, "none", "within the margin")
    assert claims.verdict([close], [0.9]) == "not reproduced in this setting"
    assert claims.verdict([close, test(0.1)], [0.9, 0.9]) == "not decided"
    assert claims.verdict([none], [0.9]) == "agrees"
