"""The benchmark of the algorithms, at a size of seconds."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from command_line import SMALL, run_cli

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_it_trains_each_algorithm_and_writes_what_they_came_to(tmp_path, cache, monkeypatch, capsys):
    small = [option for option in SMALL if not option.startswith(("budget", "logger"))]
    small.append("algorithm.samples_per_prompt=32")  # of so many some are right: a run that learns nothing is an error
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["algorithms", "--algorithms", "grpo", "gspo", "--steps", "2", *small])
    benchmark = importlib.import_module("algorithms")

    def forked(command: list[str], **options: object) -> None:
        """The benchmark's command from a process that has the imports."""
        assert command[:3] == [sys.executable, "-m", "dapo_lit.train"]
        run_cli(*command[3:], cwd=tmp_path)

    monkeypatch.setattr(benchmark, "subprocess", SimpleNamespace(run=forked))
    benchmark.main()
    results = json.loads((tmp_path / "algorithms.json").read_text())["results"]
    assert [(r["algorithm"], r["steps"]) for r in results] == [("grpo", 2), ("gspo", 2)]
    assert all(0 <= r["accuracy_after"] <= 1 and r["tokens_generated"] > 0 for r in results)
    assert "gspo" in capsys.readouterr().out
