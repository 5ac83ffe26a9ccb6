"""The made parts of pages and the made files are what the packed cells and the YAML files of docs/ give."""

import doctest
import json
import re
from pathlib import Path

import around
import claims
import inline
import made
import measured
import pooled
import predictions
import provenance
import published
import pytest
import stated
import unsourced
import yaml
from cells import ROOT

from ablations.compare.statistics import Estimate

WITH_CELLS = sorted(page for page in (ROOT / "experiments").glob("*/README.md") if any(provenance.records(page.parent)))


@pytest.mark.parametrize("page", made.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_made_part_of_a_page_is_what_its_data_give(page: Path):
    assert made.made(page) == page.read_text(encoding="utf-8"), "python docs/site/made.py rewrites it"


@pytest.mark.parametrize("file", made.FILES, ids=lambda file: file.name)
def test_a_made_file_is_what_its_data_give(file: Path):
    assert made.FILES[file]() == file.read_text(encoding="utf-8"), "python docs/site/made.py rewrites it"


def test_every_beginning_of_a_made_part_has_its_end():
    for page in made.pages():
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"<!-- made: ", text)) == len(made.PART.findall(text)), page
        assert text.count("<!-- n: ") == text.count("<!-- /n -->") == len(inline.MARK.findall(text)), page


def test_no_mark_of_a_number_starts_a_line():
    """Markdown would end the paragraph there and show the rest of the line as it is."""
    for page in made.pages():
        assert not re.search(r"^ *<!-- (n: |/n)", page.read_text(encoding="utf-8"), re.MULTILINE), page


@pytest.mark.parametrize("page", WITH_CELLS, ids=lambda page: page.parent.name)
def test_a_page_names_the_commits_of_its_cells_and_no_other(page: Path):
    commits = {str(record["git_commit"]) for _, record in provenance.records(page.parent)}
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"commits? `?([0-9a-f]{7,40})\b", text)
    assert all(any(commit.startswith(name) for commit in commits) for name in named), named
    assert "<!-- made: cells -->" in text


NO_VERDICT = re.compile(
    r"(nothing is|none is|neither is|no\w* \w+ is|none of [^|.;]*) decided|undecided|within the margin"
)


def test_a_page_whose_report_decides_nothing_claims_nothing_as_decided_in_its_headings_and_of_its_bold_numbers():
    """Where pairs within a base policy were the unit of a study, its page once said "decided" of what its own command
    calls undecided."""
    silent = []
    for page in WITH_CELLS:
        lines = provenance.verdicts(page.parent)
        if lines and all("none of" in line or "not decided" in line for line in lines):
            silent.append(page.parent.name)
            text = page.read_text(encoding="utf-8")
            claims = [*re.findall(r"^#+ .*", text, re.MULTILINE), *re.findall(r"[Bb]old: [^.;]*", text)]
            assert not [line for line in claims if "decided" in NO_VERDICT.sub("", line)], page
    assert "table1_joint" in silent


def test_a_published_sign_is_compared_at_a_place_or_says_why_not():
    for row in published.rows():
        assert (row["sign"] is not None) == (("place" in row) + ("no_place" in row) == 1), row["result"]


def test_an_interval_that_holds_nought_tells_no_sign_and_shows_none_only_within_the_margin():
    wide, narrow = Estimate(0.01, -0.02, 0.04, 12, 0.05), Estimate(0.001, -0.01, 0.012, 12, 0.02)
    loss = Estimate(-0.05, -0.08, -0.03, 12, 0.04)
    assert [published.answer(sign, wide) for sign in ("+", "-", "0", "mixed")] == ["cannot tell"] * 4
    assert [published.answer(sign, narrow) for sign in "+-0"] == ["cannot tell", "cannot tell", "agrees"]
    assert [published.answer(sign, loss) for sign in "+-0"] == ["disagrees", "agrees", "disagrees"]
    assert published.answer("mixed", loss) == "cannot tell"


def test_what_a_finding_measured_is_of_the_runs_that_its_effect_is_against():
    """One study has clip-higher left out at 16 updates a step and at 4, where the bound meets fewer tokens by far."""
    often, seldom = (
        row["measured"]["clip/high_frac_last_epoch"]
        for row in json.loads(claims.FINDINGS.read_text(encoding="utf-8"))
        if (row["technique"], row["folder"]) == ("clip_higher", "clip_by_reuse")
    )
    arms = ("dapo-clip_higher", "dapo-clip_higher@epochs=1")
    measured = [stated.mean("clip/high_frac_last_epoch", "clip_by_reuse", arm) for arm in arms]
    assert [often, seldom] == pytest.approx(measured, abs=1e-4)
    assert seldom < often / 10


def test_readme_is_raw_text_and_its_first_screen_is_the_sites():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!--" not in readme
    assert made.first_screen().splitlines()[0] in readme
    assert made.first_screen() in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_doctests_of_what_makes_numbers_hold():
    for module in (around, inline, measured, pooled, predictions, published, stated, unsourced):
        assert doctest.testmod(module).failed == 0
        assert doctest.testmod(module).attempted > 0


def test_every_number_of_a_page_is_made_or_says_why_not():
    added, gone = unsourced.added_and_gone()
    assert not added, (
        f"nothing makes {added}: mark them (docs/site/inline.py), or give the reason in {unsourced.LISTED}"
    )
    assert not gone, f"{unsourced.LISTED} lists what its page no longer has: {gone}"


STUDY_PAGES, BY_HAND = 7, 22
"""Numbers that are on pages by hand although they were measured; a new one is made instead."""


def test_the_reasons_for_numbers_that_nothing_makes_are_six_and_their_number_only_falls():
    listed = yaml.safe_load(unsourced.LISTED.read_text(encoding="utf-8"))
    by_reason: dict[str, int] = dict.fromkeys(unsourced.REASONS, 0)
    for reasons in listed.values():
        for reason, texts in reasons.items():
            by_reason[reason] += len(texts)
    assert by_reason["study page"] <= STUDY_PAGES
    assert by_reason["measured by hand"] <= BY_HAND
