"""Metrics in a user's file: logged by a run, described in its record, named and placed on its pages, or refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import SMALL
from synthetic_runs import write_run
from wiring_parts import HALVED

from ablations.border import is_share
from ablations.designs import Arm
from ablations.errors import DamagedError
from ablations.metrics import METRICS, Metric
from ablations.read.health import exercised, idle_switches
from ablations.read.outcomes import amount, in_words, is_outcome, unit
from ablations.read.packed_cells import read_packed, write_packed
from ablations.read.runs import Runs, read_run
from ablations.report.explore import panels
from ablations.report.run_page import write_run_page
from ablations.techniques import DAPO
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.switches.algorithm import check_algorithm
from dapo_lit.switches.trials import measured
from dapo_lit.train import train

KEY = "own/short_wrong_frac"


def short_wrong(groups) -> float:
    answers = [c for group in groups for c in group.completions]
    return sum(not c.correct and c.num_tokens < 5 for c in answers) / len(answers)


SHORT_WRONG = Metric(
    "short_wrong_frac", "short wrong answers", "Share of the generated completions that are wrong, below 5 tokens.",
    unit="%", panel="Response length", measure=short_wrong,
)  # fmt: skip
LONGEST = Metric(
    "longest_group", "longest group", "Most tokens of one group.", unit="tokens", panel="Mine",
    measure=lambda groups: max(sum(c.num_tokens for c in g.completions) for g in groups),
)  # fmt: skip
MEASURED = replace(HALVED, metrics=(LONGEST,), never_acted=("own/longest_group", "no group had a token"))
FAILING = replace(LONGEST, measure=lambda groups: groups[5])
TEXT = replace(LONGEST, measure=lambda groups: "many")
EMPTY = replace(LONGEST, measure=None)
OWN = "test_own_metrics."


@pytest.fixture(autouse=True)
def as_before():
    """Tests that follow know the metrics that were known."""
    known = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(known)


def test_a_run_logs_them_describes_them_and_its_page_places_them(tmp_path):
    named = (f"logger.own_metrics=[{OWN}SHORT_WRONG,{OWN}MEASURED]", f"algorithm.own_techniques=[{OWN}MEASURED]")
    train(parse(resolved(composed_tree([*SMALL, *named, "budget.steps=1", f"runs_dir={tmp_path}"]))), [])
    run = read_run(next(tmp_path.rglob("run.json")).parent)
    assert 0 < run.series(KEY).iloc[-1] <= 1
    assert run.series("own/longest_group").iloc[-1] > 1
    assert run.record["metrics"][0]["definition"] == SHORT_WRONG.definition
    assert run.record["loss_arguments"] == ["clip_dual", "clip_high", "clip_low"]
    assert "halved" in run.own_techniques[OWN + "MEASURED"].switch
    assert (in_words(KEY), unit(KEY), is_share(KEY), is_outcome(KEY)) == ("short wrong answers", "points", True, True)
    assert (unit("own/longest_group"), amount("own/longest_group", 12.0)) == ("tokens", "12")
    shown = {panel["title"]: panel["curves"] for panel in panels([*run.metrics], None)}
    assert [KEY, "short wrong answers"] in shown["Response length"]
    assert shown["Mine"] == [["own/longest_group", "longest group"]]
    text = (write_run_page(run.folder) or tmp_path).read_text()
    assert SHORT_WRONG.definition in text


def test_a_metric_of_a_run_that_generated_nothing_is_null_and_nothing_is_called():
    assert measured(FAILING, []) is None


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        (OWN + "FAILING", "own/longest_group fails IndexError"),
        (OWN + "TEXT", "own/longest_group number 'many'"),
        (OWN + "EMPTY", "EMPTY measure"),
        (OWN + "short_wrong", "short_wrong Metric"),
        ("nowhere.X", "nowhere.X PYTHONPATH"),
        (f"{OWN}LONGEST,{OWN}TEXT", "longest_group rename"),
    ],
)
def test_one_that_cannot_be_used_is_refused_before_anything_is_sampled(compose, path, keys):
    config: Config = compose(f"logger.own_metrics=[{path}]")
    with pytest.raises(ConfigError) as refused:
        check_algorithm(config)
    assert [key for key in ("logger.own_metrics", *keys.split()) if key not in str(refused.value)] == []


def test_a_name_that_is_no_key_and_a_metric_without_a_definition_are_refused():
    with pytest.raises(ValueError, match="letters, digits"):
        replace(LONGEST, name="a/b")
    with pytest.raises(ValueError, match="definition"):
        replace(LONGEST, definition="")


def described(folder: Path, arm: Arm, **of_record) -> Path:
    run = write_run(folder, arm, steps=12, every=3)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | of_record))
    return run


def test_a_technique_of_ones_own_has_its_row_of_what_there_was_to_act_on(tmp_path):
    path = "wiring_parts.HALVED"
    with_it = described(tmp_path, Arm(DAPO | {path}), own_techniques={path: MEASURED.recorded})
    runs = Runs((read_run(described(tmp_path, Arm(DAPO))), read_run(with_it)))
    state, words = exercised(runs)[path]
    assert state is True
    assert words.startswith("groups mixed: ")
    assert exercised(Runs(runs.runs[1:]))[path] == (None, "groups mixed: no run is without it")


def test_a_technique_of_ones_own_that_never_acted_is_named(tmp_path):
    path = "wiring_parts.HALVED"
    idle = replace(MEASURED, never_acted=("reward/verifier_error_frac", "nothing failed"))
    run = read_run(described(tmp_path, Arm(DAPO | {path}), own_techniques={path: idle.recorded}))
    run.metrics["reward/verifier_error_frac"] = 0.0
    assert any(text.startswith(f"{path} is on ") and text.endswith(": nothing failed") for text in idle_switches(run))


def test_a_switch_whose_argument_the_loss_does_not_read_is_named_whatever_the_loss_is_called(tmp_path):
    run = read_run(described(tmp_path, Arm(DAPO), loss_arguments=["clip_low", "width"]))
    assert any(re.match(r"clip_higher is on .*: loss=", text) for text in idle_switches(run))


def test_packed_cells_keep_what_a_run_says_of_its_metrics_and_techniques(tmp_path):
    run = read_run(described(tmp_path, Arm(DAPO), metrics=[LONGEST.recorded], own_techniques={"a.B": HALVED.recorded}))
    METRICS.clear()
    write_packed([run], tmp_path / "packed")
    (again,) = read_packed(tmp_path / "packed")
    assert in_words("own/longest_group") == "longest group"
    assert again.own_techniques["a.B"] == replace(HALVED, advantages=None)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("metrics", [LONGEST.recorded | {"words": 3}], "run.json, metrics: 0.words is 3"),
        ("metrics", [LONGEST.recorded | {"name": "../x"}], "letters, digits"),
        ("own_techniques", {"a.B": {"switch": "b"}}, "run.json, own_techniques: a.B.section is missing"),
    ],
)
def test_a_record_that_does_not_describe_them_is_refused_in_one_line(tmp_path, field, value, message):
    with pytest.raises(DamagedError, match=message) as refused:
        read_run(described(tmp_path, Arm(DAPO), **{field: value}))
    assert "\n" not in str(refused.value)
