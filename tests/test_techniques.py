"""The register of techniques is complete and consistent, and the config is made from it."""

from dataclasses import replace

import pytest
from sixth_technique import MASK

from dapo_lit.config import Config
from dapo_lit.config.algorithm import Techniques
from dapo_lit.preflight.idle_settings import idle_settings
from dapo_lit.switches.algorithm import objective
from dapo_lit.techniques import DAPO, LADDER, NAIVE_GRPO, REGISTER


def test_the_references_and_the_ladder_name_registered_techniques():
    assert tuple(REGISTER)[: len(LADDER)] == LADDER
    assert set(LADDER) >= DAPO > NAIVE_GRPO


def test_the_config_has_a_field_for_every_technique_and_presets_are_as_named(compose):
    assert list(Techniques.model_fields) == list(REGISTER)
    for preset, on in (("dapo", DAPO), ("naive_grpo", NAIVE_GRPO)):
        techniques = compose(f"algorithm={preset}").algorithm.techniques.model_dump()
        assert {switch for switch, value in techniques.items() if value} == on


@pytest.mark.parametrize(
    ("on", "overrides", "line"),
    [
        (True, ["algorithm.entropy.top_frac=1"], "techniques.low_entropy_mask=true: entropy.top_frac=1.0 keeps every"),
        (True, ["algorithm.entropy.top_frac=0.5"], None),
        (True, ["algorithm.loss=gspo"], "techniques.low_entropy_mask=true: loss=gspo has no entropy"),
        (False, ["algorithm.entropy.bonus=0.1"], "entropy.bonus=0.1: techniques.low_entropy_mask is off"),
        (False, [], None),
    ],
)
def test_a_technique_registered_as_a_sixth_is_warned_about_when_idle(compose, monkeypatch, on, overrides, line):
    monkeypatch.setitem(REGISTER, MASK.switch, MASK)

    class Six(Techniques):
        low_entropy_mask: bool = on

    config: Config = compose(*overrides)
    made = objective(config.algorithm, config.task.max_response_tokens)
    takes = made.takes | ({"entropy"} if config.algorithm.loss == "clip" else set())
    techniques = Six(**config.algorithm.techniques.model_dump())
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"techniques": techniques})})
    made = replace(made, takes=frozenset(takes))
    lines = [text for text in idle_settings(config, made) if "low_entropy_mask" in text]
    assert len(lines) == (line is not None)
    assert line is None or line in lines[0]
