"""Rewards as TRL's users write them train once the import and the class have changed (trl_examples.py)."""

import os
from pathlib import Path

import pytest
from trl_examples import EXAMPLES
from trl_runs import in_process, tiny_model, trained

from ablations.errors import UserError
from ablations.files.metrics_file import read_metrics
from dapo_lit import api


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("trl"))


IN_EVERY_RUN = (
    "longer completions, in tokens", "several tasks, None where one does not apply", "log_metric without a default",
    "repetition, from a factory", "a cosine of the length", "a curriculum by trainer_state",
)  # fmt: skip
"""One of each kind; a step takes two seconds of a processor."""


@pytest.mark.parametrize("name", EXAMPLES if os.environ.get("DAPO_LIT_MATRIX") else IN_EVERY_RUN)
def test_an_example_of_trls_trains_or_says_in_a_line_why_not(name, model, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "_command", in_process)
    refused = EXAMPLES[name].refused
    if refused is not None:
        with pytest.raises(UserError, match=refused) as error:
            trained(name, model, tmp_path)
        assert "\n" not in str(error.value)
        return
    last = read_metrics(trained(name, model, tmp_path).path).table.iloc[-1]
    assert last.name == 1
    assert (last["reward/verifier_error_frac"], last["reward/verifier_timeout_frac"]) == (0, 0)
