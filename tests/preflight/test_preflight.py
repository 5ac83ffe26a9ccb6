"""The table before the first step: a row for each check, refusals after the rows before them, and no row if skipped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_lit.build.components import RunComponents
from dapo_lit.config import ConfigError
from dapo_lit.preflight.idle_settings import idle_techniques
from dapo_lit.preflight.training import check_run

ROWS = [
    "weights", "device", "problems", "base", "policy", "tokenizer", "prompts", "evaluation", "rewards", "switches",
    "engine",
]  # fmt: skip


def test_a_run_prints_one_row_a_check_and_then_its_warnings(compose, capsys):
    parts = RunComponents(compose("algorithm.clip.high=0.2", "algorithm.num_prompts=6"))
    with parts.verifier:
        check_run(parts)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("(preflight=false skips this)")
    (warning,) = (line for line in lines if line.startswith("    warning: "))
    assert lines[lines.index(warning) - 1].startswith("  switches")
    lines.remove(warning)
    shown = [line.strip() for line in lines if line.startswith("    ")]
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if not line.startswith("    ")}
    assert list(rows) == ROWS
    assert rows["weights"] == "float32 weights, learning rate 0.001"
    assert re.match(r"4 to train on.* 6 prompts", rows["problems"])
    assert re.match(r"4 problems.* 4 distinct prompts of ", rows["prompts"])
    assert shown[1].endswith("?[response]")
    assert rows["evaluation"] == "4 held-out problems"
    assert rows["policy"].startswith("qwen2, ")
    assert rows["rewards"].endswith("4 of 4 reference answers and 0 of 16 junk texts")
    assert "clip_higher" in rows["switches"]
    assert rows["switches"].endswith("; 1 to look at")
    assert rows["engine"] == "torch, float32"
    assert warning.startswith("    warning: algorithm.techniques.clip_higher=true: clip.high equals clip.low (0.2)")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from dapo_lit.cli.command import compose
from dapo_lit.train import train
for override in sys.argv[2:]:
    try:
        train(compose("+experiment=four_sums", sys.argv[1], *override.split()), [])
    except ModuleNotFoundError as error:
        print(f"{error}; the end")
"""


def test_the_first_row_of_a_run_is_printed_before_torch_loads_and_none_where_the_run_is_finished(tmp_path):
    """Torch and Lightning take seconds; a run with nothing to do says only that."""

    def printed(*overrides: str) -> list[list[str]]:
        """What each run prints before the first import of torch."""
        command = [sys.executable, "-c", WITHOUT_TORCH, f"runs_dir={tmp_path}", *overrides]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
        runs = done.stdout.split("import of torch halted; None in sys.modules; the end\n")
        assert len(runs) == len(overrides) + 1
        return [run.splitlines() for run in runs[:-1]]

    (first, row), unchecked = printed("", "preflight=false")
    assert first.endswith("(preflight=false skips this)")
    assert row.split(maxsplit=1) == ["weights", "float32 weights, learning rate 0.001"]
    assert unchecked == []
    folder = tmp_path / "four_sums" / "dapo" / "seed_0"
    folder.mkdir(parents=True)
    (folder / "DONE.json").write_text("{}")
    assert printed("resume=auto", "") == [[], [first, row]]


def test_preflight_false_tries_nothing_out(compose, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "rewards"))
    settings = ("reward.function=reward_functions.absent", "policy.dtype=bfloat16")
    parts = RunComponents(compose(*settings, "preflight=false"))
    with parts.verifier:
        check_run(parts)
    assert capsys.readouterr().out == ""
    parts = RunComponents(compose(*settings))
    with pytest.raises(ConfigError, match="16-bit weights"):
        check_run(parts)


def test_after_the_first_steps_a_technique_that_is_on_and_had_next_to_nothing_to_act_on_is_named(compose):
    rows = [
        {"step": n, "rollout/groups_mixed_frac": mixed, "rollout/length_cv": 0.7} for n, mixed in ((1, 1.0), (2, 0.9))
    ]
    (line,) = idle_techniques(compose().algorithm, rows)
    assert "techniques.dynamic_sampling" in line
    assert "5.0% (needs 10.0%)" in line
    assert idle_techniques(compose("algorithm.techniques.dynamic_sampling=false").algorithm, rows) == []
