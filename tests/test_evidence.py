"""Published evidence has its sources, and every technique has evidence and a page that fits the register."""

import re
from pathlib import Path

import pytest
import yaml

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
