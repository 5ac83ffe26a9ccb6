"""Reports and figures as a reader gets them: order, wording, accessibility."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import write_run, write_study

from ablations.commands.report import main as report
from ablations.designs import Arm
from ablations.read.calibrations import read_calibration
from ablations.read.registration import Family, Plan, Registered, register
from ablations.read.runs import StudyError, load
from ablations.report.document import Table, in_terminal
from ablations.report.page_one import page_one
from ablations.report.report import close
from ablations.report.results import analyse
from ablations.techniques import DAPO


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study with its report."""
    base = tmp_path_factory.mktemp("whole")
    register(base / "pair", Plan("pair", metric="eval/chain_sum/avg@4", seeds=(0, 1, 2)))
    folder = write_study(base, "pair", seeds=(0, 1, 2), steps=12, every=3)
    assert report([str(folder)]) == 0
    return folder / "report"


class Page(HTMLParser):
    """Tags, ids and references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetched.append(value or "")


def test_the_page_needs_no_script_fetches_nothing_and_describes_every_figure(whole: Path) -> None:
    page, text = Page(), (whole / "report.html").read_text()
    page.feed(text)
    assert page.tags.count("script") == 3
    assert page.fetched == []
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == len(list((whole / "figures").glob("*.svg")))
    described = re.findall(r"<desc[^>]*>(.*?)</desc>", text)
    assert len(described) == page.tags.count("svg")
    assert all(re.search(r"\d", words) for words in described)


def test_the_first_sentence_gives_the_sensitivity_of_the_regime(tmp_path: Path) -> None:
    folder = write_study(tmp_path, "pair", seeds=(0, 1), steps=6, every=3, keys={"regime": {"name": "made_up"}})
    assert read_calibration(load(folder), folder) is None
    (tmp_path / "calibrate_made_up").mkdir()
    file = tmp_path / "calibrate_made_up" / "calibration.json"
    verdicts = [
        {"technique": "clip_higher", "admitted": False, "reason": "its extreme setting does not change it"},
        {"technique": "token_level_loss", "admitted": True, "reason": ""},
    ]
    file.write_text(json.dumps({"regime": "made_up", "seeds": list(range(6)), "techniques": verdicts}))
    results = replace(analyse(load(folder)), calibration=read_calibration(load(folder), folder))
    first = page_one(results)[1]
    assert "6 pairs an arm: sensitive to token-level loss" in str(first)
    assert "Not sensitive to clip-higher" in str(first)
    file.write_text("{}")
    with pytest.raises(StudyError, match=r"calibration\.json: cannot be read"):
        read_calibration(load(folder), folder)


GRPO, PUNISHED = Arm(frozenset()), Arm(frozenset({"soft_overlong_punishment"}))


def closed(folder: Path, seeds: int, **kind: Any) -> str:
    """What a study of GRPO with and without the length penalty prints at its end, on 80 columns."""
    arms = (PUNISHED.name, GRPO.name)
    register(folder / "add", Plan("add", "eval/chain_sum/avg@4", GRPO.name, arms, tuple(range(seeds))))
    for arm in (GRPO, PUNISHED):
        for seed in range(seeds):
            write_run(folder, arm, seed, study="add", steps=6, every=3, **kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        return close("add", [folder / "add"], "typed")


def test_a_study_ends_in_one_sentence_and_a_row_for_each_arm(tmp_path: Path) -> None:
    """Also where the regime's control, another comparison, found nothing: the page says so and the end does not."""
    (tmp_path / "calibrate_made_up").mkdir()
    row = {
        "technique": "soft_overlong_punishment", "admitted": False, "reason": "its extreme setting does nothing",
        "doses": [{"arms": ["dapo@clip.high=5", "dapo-soft_overlong_punishment@clip.high=5"]}],
    }  # fmt: skip
    tree = {"regime": "made_up", "seeds": list(range(6)), "techniques": [row]}
    (tmp_path / "calibrate_made_up" / "calibration.json").write_text(json.dumps(tree))
    effects = {"soft_overlong_punishment": -0.1}
    said = closed(tmp_path, 7, effects=effects, keys={"regime": {"name": "made_up"}})
    runs = load(tmp_path / "add")
    means = [
        np.mean([run.series("eval/chain_sum/avg@4").iloc[-1] for run in runs.of(arm.name)]) for arm in (GRPO, PUNISHED)
    ]
    before, after = (f"{100 * mean:.1f} %" for mean in means)
    sentence, _, rest = said.partition("decided.\n")
    assert sentence.replace("\n  ", " ").startswith(
        f"GRPO {before}, with soft overlong punishment {after}; all 7 pairs down (-"
    )
    assert " points, p = 0.016): " in sentence.replace("\n  ", " ")
    header, *rows, last = rest.splitlines()
    assert header.split() == ["accuracy", "on", "chain_sum", "(avg@4)", "runs", "mean", "95", "%", "interval"]
    assert [row.split()[:3] for row in rows] == [
        ["naive_grpo", "7", before.split()[0]],
        ["naive_grpo+soft_overlong_punishment", "7", after.split()[0]],
    ]
    assert last == f"report: {tmp_path / 'add' / 'report' / 'report.html'}"
    assert max(map(len, said.splitlines()[:-1])) <= 80
    assert "does nothing" not in said
    page = (tmp_path / "add" / "report" / "report.html").read_text()
    assert "dapo clip.high=5 minus dapo -soft clip.high=5: its extreme setting does nothing" in page


def test_a_study_that_decides_nothing_says_how_many_pairs_agree(tmp_path: Path) -> None:
    said = closed(tmp_path, 7, effects={"soft_overlong_punishment": 0.0}).replace("\n  ", " ")
    assert re.search(r"; [4-6] of 7 pairs (up|down) \(.* points, p = [\d.]+\): undecided\.", said)


@pytest.mark.parametrize("width", range(30, 130, 7))
def test_a_table_in_a_terminal_cuts_no_word_and_keeps_to_its_width(width: int) -> None:
    columns = ["comparison", "outcome", "same sign", "median", "difference", "interval", "p", "kind", "verdict"]
    rows = [["soft overlong punishment", "held-out accuracy on joint (avg@8)", "7 of 7", "-7.8 [-20.6, -2.7]",
             "-10.1 points", "[-19.3, -0.8]", "0.0156", "registered, alpha 0.05", "down"]] * 2  # fmt: skip
    for shown in range(2, len(columns) + 1):
        lines = in_terminal([Table("t", "", columns[:shown], [row[:shown] for row in rows])], width)
        assert max(map(len, lines)) <= width
        words = " ".join(lines).replace(":", " ").replace(",", " ").split()
        for word in " ".join(rows[0][:shown]).replace(",", " ").split():
            assert words.count(word) >= 2


def effects_of(folder: Path, plan: Plan | None) -> list[dict[str, str]]:
    (table,) = [p for p in page_one(analyse(load(folder), plan)) if isinstance(p, Table) and p.name == "effects"]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of eight pairs."""
    return write_study(tmp_path_factory.mktemp("eight"), "pair", seeds=range(8), steps=12, every=3)


def test_nothing_is_decided_that_was_not_registered_and_the_rest_is_exploratory(eight: Path) -> None:
    bare = effects_of(eight, None)
    assert {row["verdict"] for row in bare} == {""}
    assert all(row["kind"].startswith("exploratory") for row in bare)
    assert bare[0]["p"] == "0.00781"  # 2 of 256 flips, and still no verdict
    ends = [np.mean([run.series("tokens_generated").max() for run in load(eight).of(arm)]) for arm in load(eight).arms]
    assert bare[0]["tokens"] == f"{round(ends[0], -2):,.0f} / {round(ends[1], -2):,.0f}"  # four digits
    contrast = Registered(
        "clip_higher",
        "clip_higher",
        {"dapo": 1.0, "dapo-clip_higher": -1.0},
        "rollout/entropy",
        "entropy",
        steps=(4, 9),
    )
    plan = Plan("pair", metric="eval/chain_sum/avg@4", families=(Family("mine", 0.025, (contrast,), 0.5),))
    first, *others = effects_of(eight, plan)
    assert (first["outcome"], first["n"], first["verdict"]) == ("entropy, steps 4 to 9", "8", "up")
    assert first["kind"] == "registered, mine, alpha 0.025"
    assert {row["verdict"] for row in others} == {""}
    runs = load(eight)
    means = [[run.series("rollout/entropy").loc[4:9].mean() for run in runs.of(arm)] for arm in contrast.weights]
    assert first["difference"] == f"{sum(means[0]) / 8 - sum(means[1]) / 8:+.3g} nats"


def test_pairs_beyond_those_registered_decide_nothing_and_fewer_wait(eight: Path) -> None:
    plan = Plan("pair", metric="eval/chain_sum/avg@4", family="left out of DAPO")
    assert effects_of(eight, replace(plan, seeds=tuple(range(12))))[0]["verdict"] == "at 8 of 12"
    first = effects_of(eight, replace(plan, seeds=tuple(range(5))))[0]
    assert (first["n"], first["p"], first["verdict"]) == ("5", "0.0625", "undecided")
    looked = effects_of(eight, replace(plan, stopping={"looks": [6, 8, 10]}))[0]
    assert looked["verdict"] == "up at 8 of 10"  # 2 of 64 flips are more than alpha * 6 / 10
    assert looked["adjusted p"] == "–"


def test_an_equivalence_takes_the_share_of_alpha_that_each_of_its_comparisons_has(eight: Path) -> None:
    """Two comparisons at 5 %: the interval of each at 95 %, not 90 %, must be within the margin."""
    runs, weights = load(eight), {"dapo": 1.0, "dapo-clip_higher": -1.0}
    one, other = (
        Registered(f"c{end}", None, weights, "rollout/length_mean", "length", steps=(end - 2, end)) for end in (6, 9)
    )
    ends = []
    for steps in ((4, 6), (7, 9)):
        means = [
            [run.series("rollout/length_mean").loc[slice(*steps)].mean() for run in runs.of(arm)] for arm in weights
        ]
        d = np.subtract(*means)
        ends.append(abs(d.mean()) + stats.t.ppf(0.975, 7) * d.std(ddof=1) / 8**0.5)
    for scale, verdict in ((0.99, "undecided"), (1.01, "within the margin")):
        family = Family("mine", 0.05, (one, other), scale * max(ends))
        rows = effects_of(eight, Plan("pair", metric="eval/chain_sum/avg@4", families=(family,)))
        assert rows[int(np.argmax(ends))]["verdict"] == verdict


def test_unequal_seeds_a_missing_arm_and_a_failed_run_are_said(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, Arm(DAPO), seed, study="leave_one_out", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}), 0, study="leave_one_out", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO - {"clip_higher"}), 1, study="leave_one_out", steps=6, every=3, status="failed")
    plan = {"study": "leave_one_out", "arms": ["dapo", "dapo-clip_higher", "dapo-dynamic_sampling"], "seeds": [0, 1, 2]}
    entry = {"at": "2026-01-01T00:00:00+00:00", "plan": plan}
    (tmp_path / "leave_one_out" / "study.json").write_text(json.dumps([entry]))
    assert report([str(tmp_path / "leave_one_out")]) == 3
    results = json.loads((tmp_path / "leave_one_out" / "report" / "report.json").read_text())
    assert [(row["arm"], row["runs"]) for row in results["tables"]["outcomes"]] == [
        ("dapo", "3"),
        ("dapo-clip_higher", "1"),
    ]
    missing = {row["run"]: row["reason"] for row in results["tables"]["health"]}
    assert missing["dapo-dynamic_sampling/seed_0"] == "no run folder"
    assert missing["dapo-clip_higher/seed_1"] == "failed at step 6: RuntimeError: out of memory"


def test_text_from_runs_becomes_neither_html_nor_a_link(tmp_path: Path) -> None:
    write_run(tmp_path, Arm(DAPO), 0, study="x", steps=6, every=3)
    write_run(tmp_path, Arm(DAPO), 1, study="x", steps=6, every=3, status="failed")
    record = tmp_path / "x" / "dapo" / "seed_1" / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"error": "<script>x</script> | [a](http://b)"}))
    assert report([str(tmp_path / "x")]) == 3
    page = Page()
    page.feed((tmp_path / "x" / "report" / "report.html").read_text())
    assert page.tags.count("script") == 3
    assert page.fetched == []


def test_evaluations_at_marks_have_a_table_of_what_the_rows_say(tmp_path: Path) -> None:
    mark, key = 50_000, "eval/chain_sum/avg@4"
    folder = write_study(
        tmp_path, "pair", seeds=(0, 1), steps=12, every=3, keys={"evaluation.at_tokens": [mark, 10**9]}
    )
    assert report([str(folder)]) == 0
    (row,) = json.loads((folder / "report" / "report.json").read_text())["tables"]["at_tokens"]  # none at 10^9

    def first(arm: str, seed: int) -> float:
        rows = map(json.loads, (folder / arm / f"seed_{seed}" / "metrics.jsonl").read_text().splitlines())
        return next(row[key] for row in rows if key in row and row["tokens_generated"] >= mark)

    gaps = [100 * (first("dapo", seed) - first("dapo-clip_higher", seed)) for seed in (0, 1)]
    assert (row["comparison"], row["tokens generated"]) == ("clip-higher", "50,000")
    assert row["difference"].split()[0] == f"{np.mean(gaps):+.1f}"
