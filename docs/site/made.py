"""Writes the parts of pages that are made of data, and the files that are: `python docs/site/made.py`.

A made part of a page is between `<!-- made: NAME -->` and `<!-- end of NAME -->`, a made number of a sentence between
`<!-- n: KEY -->` and `<!-- /n -->` (inline.py), so that readers of the repository see them as well as those of the
site. They come from packed cells, calibrations, benchmarks and the YAML files of docs/, and nobody edits them;
tests/pages/test_made.py compares every part and file with its data. Tables that only the site shows, because every
change of the code changes them, are in tables.py. README is read as raw text too, so that its marks are in
readme.template, of which it is made without them.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import claims
import curves
import effects
import forms
import inline
import key_use
import loops
import measured
import on_gpu
import planned
import pooled
import predictions
import price
import provenance
import published
import real_model
import rule
import rules_tried
import stated
import techniques
import transfer
import walked
from cells import ROOT
from tables import calibration

from ablations.techniques import FILE as TECHNIQUES
from ablations.techniques import REGISTER, techniques_text
from ablations.trainer import FILE as UNCOUNTED
from dapo_lit.config.identity import uncounted
from dapo_lit_tools.replays.page import refilled


def played(page: Path) -> str:
    """The page of a recorded step, its data in the template of today."""
    return refilled(page.read_text(encoding="utf-8"))


def first_screen() -> str:
    """What README says before its commands, with links as docs/index.md needs them."""
    text = inline.without_marks(made(TEMPLATE)).split("by how much?**\n\n")[1].split("\n## ")[0]
    return re.sub(r"\]\((?!http)(docs/)?", lambda link: "](" if link[1] else "](../", text).strip()


PARTS: dict[str, Callable[[], str]] = {
    "first_screen": first_screen,
    "claims": claims.table,
    "calibration": calibration,
    "evidence": published.evidence,
    "signs": published.signs,
    "why_no_rate": published.why_no_rate,
    "found": effects.found,
    "found_at_steps": effects.found_at_steps,
    "described": effects.described,
    "between_tasks": effects.between_tasks,
    "to_act_on": effects.to_act_on,
    "mechanism": effects.mechanism,
    "mechanism_words": effects.mechanism_words,
    "equal_tokens": effects.equal_tokens,
    "held_out_at_equal_tokens": effects.held_out_at_equal_tokens,
    "mean_at_equal_tokens": effects.mean_at_equal_tokens,
    "around_dapo": pooled.techniques,
    "interaction": pooled.interaction,
    "along_tokens": curves.along_tokens,
    "price_of_sampling": price.table,
    "price_tokens": price.spent,
    "sampling_smollm2": real_model.along,
    "transfer_worths": transfer.worths,
    "transfer_predictors": transfer.predictors,
    "transfer_tokens": transfer.tokens,
    "forms": forms.table,
    "form_rows": forms.rows,
    "responses": forms.responses,
    "responses_differences": forms.differences,
    "distinct": forms.distinct,
    "rules_tried": rules_tried.table,
    "rules_tried_figure": rules_tried.described,
    "rules_predicted": rules_tried.predictions,
    "loops": loops.table,
    "loops_mean": loops.means,
    "skewed_effects": rule.skewed_effects,
    "skewed_statistics": rule.skewed_statistics,
    "regret_said": rule.regret_said,
    "agreement": measured.agreement,
    "scripts_read": measured.scripts_read,
    "trl_examples": measured.trl_examples,
    "finished_logs": measured.finished_logs,
    "first_minutes": measured.first_minutes,
    "estimates": measured.estimates,
    "threads": measured.threads,
    "power": measured.power,
    "sampling_costs": measured.sampling_costs,
    "steps_ahead": measured.steps_ahead,
    "gpu_conditions": on_gpu.conditions,
    "gpu_starts": on_gpu.starts,
    "gpu_second_starts": on_gpu.second_starts,
    "gpu_trainer": on_gpu.trainer,
    "gpu_head": on_gpu.head,
    "gpu_goals": on_gpu.goals,
    "gpu_smollm2": on_gpu.smollm2,
    "gpu_agreement": on_gpu.agreement,
    "forks_against_runs": stated.forks_against_runs,
    "floors": walked.floors,
    "buildings": walked.buildings,
    "roads": walked.roads,
    "plan_memory": planned.memory,
    "plan_training": planned.training,
    "plan_constants": planned.constants,
    "plan_training_errors": planned.training_errors,
    "plan_sources": planned.sources,
    "plan_steps": planned.steps,
}
"""Name of a part -> what makes it, the same on every page."""
OF_PAGE: dict[str, Callable[[Path], str]] = {
    "cells": lambda page: provenance.cells(page.parent),
    "our_evidence": techniques.our_evidence,
    "predictions": lambda page: predictions.table(page.parent),
}
"""Name of a part -> what makes it of the page that it is on."""
PLAYED = ROOT / "docs" / "play"
"""Pages of recorded steps. Their data need hours of a processor; how they look is the template's."""
FILES: dict[Path, Callable[[], str]] = {
    ROOT / "README.md": lambda: inline.without_marks(made(TEMPLATE)),
    # train.html is built of docs/play/train (`make tab`).
    **{page: partial(played, page) for page in sorted(PLAYED.glob("*.html")) if page.name != "train.html"},
    claims.FINDINGS: claims.findings,
    TECHNIQUES: lambda: techniques_text(REGISTER.values()),
    UNCOUNTED: lambda: json.dumps(uncounted(), indent=1) + "\n",
    effects.FIGURE: effects.figure,
    price.FIGURE: price.figure,
    transfer.FIGURE: transfer.figure,
    rules_tried.FIGURE: rules_tried.figure,
    key_use.VARIED: key_use.counted,
}
TEMPLATE = Path(__file__).with_name("readme.template")
PART = re.compile(r"^<!-- made: (\w+) -->\n(.*?)^<!-- end of \1 -->$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The pages that have a made part or number."""
    found = [TEMPLATE, ROOT / "math_answers" / "README.md"]
    found += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.md")]
    return sorted(page for page in found if re.search("<!-- (made|n): ", page.read_text(encoding="utf-8")))


def made(page: Path) -> str:
    """A page with its parts and numbers as the data are now."""

    def part(found: re.Match[str]) -> str:
        name = found[1]
        text = PARTS[name]() if name in PARTS else OF_PAGE[name](page)
        return f"<!-- made: {name} -->\n\n{text.strip()}\n\n<!-- end of {name} -->"

    own = (ROOT / "experiments") in page.parents
    return inline.filled(PART.sub(part, page.read_text(encoding="utf-8")), own_study=own)


def main() -> None:
    for page in pages():
        if (text := made(page)) != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))
    for file, make in FILES.items():
        if not file.is_file() or make() != file.read_text(encoding="utf-8"):
            file.write_text(make(), encoding="utf-8")
            print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
