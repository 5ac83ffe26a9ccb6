"""A benchmark is not stricter than the training rule without a word, nor ever than the scorer published for it."""

import re
from types import SimpleNamespace

import pytest

from dapo_lit.build.components import RunComponents
from dapo_lit.config.commands import load_benchmark
from dapo_lit.preflight.rules import PUBLISHED, check_rules, stricter_forms
from dapo_lit.preflight.training import check_run
from dapo_lit.rewards.verifier import Verifier

REFERENCES = ["42", "204", "1/2"]


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_no_shipped_benchmark_is_stricter_than_its_published_scorer(name, published):
    benchmark = load_benchmark(name)
    scorings = (published, benchmark.extraction), (benchmark.rule, benchmark.extraction)
    assert stricter_forms(*scorings, REFERENCES) == []


def test_what_a_stricter_rule_does_not_accept_is_found_form_by_form():
    found = stricter_forms(("dapo", "answer_line"), ("numeric", "answer_line"), ["42"])
    assert {"n=42", r"42^\circ", "42 cm"} <= {*found}
    assert "42" not in found
    assert stricter_forms(("numeric", "number"), ("sympy", "boxed"), REFERENCES) == []
    assert stricter_forms(("sympy", "boxed"), ("sympy", "hash"), REFERENCES) == []


def test_the_forms_and_the_format_that_only_training_accepts_are_quoted():
    benchmark = load_benchmark("aime_2024").model_copy(update={"rule": "numeric"})
    rule, extraction = check_rules("sympy", "boxed", benchmark, ["42", "204"])
    assert re.match(r"evaluation\.benchmarks: aime_2024 has rule numeric .*reward\.rule=", rule)
    assert "reward.rule=sympy accepts: 'x = 42', 'n=42', " in rule
    assert "more forms" in rule
    assert r"finds no answer in '\\boxed{42}', the form that reward.extraction=boxed trains" in extraction
    assert check_rules("numeric", "answer_line", benchmark, ["42"]) == ()


def test_a_run_is_warned_of_a_benchmark_that_is_stricter(compose, capsys, monkeypatch):
    parts = RunComponents(compose("reward.rule=sympy", "reward.extraction=answer_line"))
    prompts = parts.train_prompts[0]
    with parts.verifier, Verifier(rule="numeric", extraction="answer_line") as verifier:
        protocol = {"rule": "numeric", "extraction": "answer_line", "template": "plain"}
        settings = load_benchmark("aime_2024").model_copy(update=protocol)
        benchmark = SimpleNamespace(settings=settings, prompts=prompts, verifier=verifier)
        monkeypatch.setattr("dapo_lit.preflight.training.check_leakage", lambda *_: ())
        monkeypatch.setattr(RunComponents, "benchmarks", [benchmark])
        check_run(parts)
    assert "warning: evaluation.benchmarks: aime_2024 has rule numeric " in capsys.readouterr().out
