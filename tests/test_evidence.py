"""Published evidence has its sources, and every technique has evidence and a page that fits the register."""

import re
from pathlib import Path

import claims
import pytest
import yaml

from dapo_lit.study.compare.contrasts import Effect, difference
from dapo_lit.study.compare.statistics import Estimate
from dapo_lit.techniques import REGISTER

DOCS = Path(__file__).parents[1] / "docs"
ENTRIES = yaml.safe_load((DOCS / "evidence.yaml").read_text())
FIELDS = ("about", "result", "model", "task", "runs", "sign", "source", "url", "read")
URL = (
    r"https://(arxiv\.org/abs/\d\d(0[1-9]|1[0-2])\.\d{5}|github\.com/[\w-]+/[\w.-]+/(tree/[\w/.-]+|(pull|issues)/\d+))"
)


def test_every_entry_names_model_task_runs_source_and_what_was_read_of_it():
    url_of = {}
    for row in ENTRIES:
        assert tuple(row) == FIELDS, row
        assert row["read"] in ("paper", "abstract", "thread", "docs", "second-hand")
        assert row["sign"] in ("+", "-", "0", "mixed", None), row
        assert row["runs"] is None or row["runs"] >= 1
        assert re.fullmatch(URL, row["url"]), row
        assert url_of.setdefault(row["source"].removesuffix(", Table 1"), row["url"]) == row["url"], row


@pytest.mark.parametrize("switch", REGISTER)
def test_every_technique_has_published_evidence_and_a_page_with_its_switch_and_section(switch):
    technique = REGISTER[switch]
    assert any(row["about"] == switch for row in ENTRIES)
    page = (DOCS / "techniques" / f"{switch}.md").read_text()
    for expected in (
        f"`algorithm.techniques.{switch}`",
        technique.equation,
        f"../evidence.md#{technique.label.replace(' ', '-')}",
    ):
        assert expected in page
    assert technique.section.lower() in page.lower()


def test_the_page_of_claims_has_the_rows_and_verdicts_that_the_committed_studies_give():
    tree, text = yaml.safe_load((DOCS / "claims.yaml").read_text()), claims.PAGE.read_text()
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
