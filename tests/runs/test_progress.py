"""The remaining time of a run ends with the budget that is spent first; the live display fits the terminal."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from dapo_lit.runs import loggers
from dapo_lit.runs.loggers import Display, remaining_steps


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        ((), "960 s"),
        (("budget.wall_s=60",), "80 s"),
        (("budget.tokens_generated=1000",), "60 s"),
        (("budget.wall_s=60", "budget.tokens_generated=1000"), "60 s"),
        (("budget.wall_s=1000000",), "960 s"),
        (("budget.wall_s=15",), "0 s"),
    ],
)
def test_the_eta_honours_every_budget(compose, monkeypatch, capsys, budget, seconds):
    now = 0.0
    monkeypatch.setattr(loggers, "time", SimpleNamespace(perf_counter=lambda: now))
    display = Display(compose("budget.steps=100", "logger.progress=plain", *budget), Console())
    for step in range(5):
        now = step * 10.0
        # evaluation is in the elapsed time, but not in wall_s: 5 s a step count
        display.row({"step": step, "wall_s": step * 5.0, "tokens_generated": step * 100, "perf/tokens_per_s": 20.0})
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"eta {seconds}")


def test_a_resumed_run_counts_its_rate_from_its_own_first_row(compose):
    budget = compose("budget.steps=100", "budget.wall_s=600").budget
    first = {"step": 50, "wall_s": 500.0, "tokens_generated": 0}
    assert remaining_steps(budget, first, first) is None
    assert remaining_steps(budget, first, {"step": 55, "wall_s": 550.0, "tokens_generated": 0}) == 5


@pytest.mark.parametrize(("width", "has_bar"), [(80, False), (200, True)])
def test_the_live_display_takes_one_line_of_the_terminal(compose, width, has_bar):
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system=None)
    display = Display(compose("budget.steps=100", "logger.progress=rich"), console)
    row = {"rollout/accuracy": 0.5, "rollout/entropy": 0.25, "rollout/length_mean": 125.0, "perf/tokens_per_s": 9000.0}
    for step in range(3):
        display.row({**row, "step": step, "wall_s": float(step), "tokens_generated": step})
    display.close()
    last = screen.getvalue().split("\x1b[2K")[-1]
    assert "2/100" in last
    assert "entropy 0.250  length 125.0" in last
    assert "…" not in last
    assert last.startswith("training") == has_bar == ("9000 tokens/s" in last)
