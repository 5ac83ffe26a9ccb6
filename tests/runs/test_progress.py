"""The remaining time of a run ends with the budget that is spent first."""

from types import SimpleNamespace

import pytest

from dapo_lit.runs import loggers
from dapo_lit.runs.loggers import Display, remaining_steps


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        ((), "16:00"),
        (("budget.tokens_generated=1000",), "01:00"),
        (("budget.tokens_generated=1000000",), "16:00"),
        (("budget.tokens_generated=300",), "00:00"),
    ],
)
def test_the_eta_honours_every_budget(compose, monkeypatch, capsys, budget, seconds):
    now = 0.0
    monkeypatch.setattr(loggers, "time", SimpleNamespace(perf_counter=lambda: now))
    display = Display(compose("budget.steps=100", *budget).budget)
    for step in range(5):
        now = step * 10.0
        display.row({"step": step, "tokens_generated": step * 100, "perf/tokens_per_s": 20.0})
    assert capsys.readouterr().out.splitlines()[-1].endswith(f" eta {seconds}")


def test_a_resumed_run_counts_its_rate_from_its_own_first_row(compose):
    budget = compose("budget.steps=100", "budget.tokens_generated=600").budget
    first = {"step": 50, "tokens_generated": 500}
    assert remaining_steps(budget, first, first) is None
    assert remaining_steps(budget, first, {"step": 55, "tokens_generated": 550}) == 5
