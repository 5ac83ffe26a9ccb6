"""The page of published evidence is what its YAML file says, and every technique has a page that fits the register."""

import importlib.util
import re
from pathlib import Path

import pytest

from dapo_lit.techniques import REGISTER

DOCS = Path(__file__).parents[1] / "docs"
SPEC = importlib.util.spec_from_file_location("evidence", DOCS / "evidence.py")
assert SPEC
assert SPEC.loader
evidence = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(evidence)


def test_every_entry_names_model_task_runs_source_and_what_was_read_of_it():
    for row in evidence.entries():
        assert tuple(row) == evidence.FIELDS, row
        assert row["read"] in evidence.READ
        assert row["runs"] is None or row["runs"] >= 1
        assert row["url"].startswith("https://")
        assert all(row[field] for field in evidence.FIELDS if field != "runs")


ARXIV = r"https://arxiv\.org/abs/\d\d(0[1-9]|1[0-2])\.\d{5}"
GITHUB = r"https://github\.com/[\w-]+/[\w.-]+/(tree/[\w/.-]+|(pull|issues)/\d+)"


def test_a_url_is_a_paper_or_a_thread_and_each_source_has_one():
    url_of, source_of = {}, {}
    for row in evidence.entries():
        url, source = row["url"], row["source"].removesuffix(", Table 1")
        assert re.fullmatch(f"{ARXIV}|{GITHUB}", url), url
        assert url_of.setdefault(source, url) == url, f"{source} has two addresses"
        assert source_of.setdefault(url, source) == source, f"{url} has two names"
        number = re.search(r"(?:arXiv|pull request|issue) ([\d.]+)$", source)
        assert number is None or url.endswith(f"/{number[1]}"), row
        assert (row["read"] == "thread") <= ("/pull/" in url or "/issues/" in url), row


def test_the_page_is_made_from_the_yaml_file():
    assert (DOCS / "evidence.md").read_text() == evidence.page(evidence.entries()), "run python docs/evidence.py"


def test_what_was_only_read_second_hand_says_so():
    second = [row for row in evidence.entries() if row["read"] == "second-hand"]
    text = (DOCS / "evidence.md").read_text()
    assert len(second) > 3
    assert text.count("| **second-hand** |") == len(second)


@pytest.mark.parametrize("switch", REGISTER)
def test_every_technique_has_published_evidence_and_a_page_with_its_switch_and_section(switch):
    technique = REGISTER[switch]
    assert any(row["about"] == switch for row in evidence.entries())
    page = (DOCS / "techniques" / f"{switch}.md").read_text()
    assert page.startswith(f"# {technique.label.capitalize()}\n")
    assert f"`algorithm.techniques.{switch}`" in page
    assert technique.section.lower() in page.lower()
    assert technique.equation in page
    assert f"../evidence.md#{technique.label.replace(' ', '-')}" in page
