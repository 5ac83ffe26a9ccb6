"""What a shell script passes to its commands, as bash passes it: shell_constructions/ has a script for each kind.

`benchmarks/convert_scripts.py` does the same with the scripts of verl and TRL.
"""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from dapo_lit.config import ConfigError
from dapo_lit_tools.conversion import shell
from dapo_lit_tools.conversion.foreign_scripts import command_settings
from dapo_lit_tools.conversion.shell import walk
from dapo_lit_tools.conversion.shell_words import braces

CONSTRUCTIONS = sorted((Path(__file__).parent / "shell_constructions").glob("*.sh"))


@pytest.mark.parametrize("script", CONSTRUCTIONS, ids=lambda script: script.stem)
def test_words_are_those_that_bash_passes(tmp_path: Path, script: Path):
    said = tmp_path / "said"
    (tmp_path / "python3").write_text('#!/bin/bash\nprintf "%s\\0" "$@" >> "$SAID"; printf "\\1\\0" >> "$SAID"\n')
    (tmp_path / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "SAID": str(said)}
    subprocess.run(["bash", str(script)], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL, check=False)
    calls = [call.split("\0")[:-1] for call in said.read_text().split("\1\0")[:-1]]
    found, words = walk(script.read_text(), script.name)
    ours = [[words.shown(word) for word in c.words[1:]] for c in found.commands if c.words[0] == "python3"]
    assert sorted(ours) == sorted(calls)
    assert calls


RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n="


def test_what_only_a_run_could_tell_is_open_and_named():
    _, found = command_settings(
        "if nvidia-smi; then N=8; E=(trainer.val_only=True); else N=16; E=(); fi\n"
        f'{RUN}$N trainer.nnodes=$(hostname | wc -l) data.train_files=$DATA/x.parquet "${{E[@]}}"', "run.sh",
    )  # fmt: skip
    assert found["actor_rollout_ref.rollout.n"].text == "8 or 16, by the branch in line 1"
    assert found["trainer.nnodes"].text == "$(hostname | wc -l)"
    assert found["data.train_files"] == "$DATA/x.parquet"
    assert found["trainer.val_only"].text == "True, only in a branch, line 1"


def test_a_default_that_decides_a_branch_and_settings_that_bash_drops_are_said():
    _, found = command_settings(
        'D=${D:-gpu}\nif [ "$D" = npu ]; then X=1; fi\n'
        f"{RUN}8 \\ # note\n  trainer.nnodes=2 \\\n  trainer.save_freq=5\n",
        "run.sh",
    )
    assert found["line 2"].where == "notes"
    assert "a setting" in found["line 4"].text
    assert "trainer.nnodes" not in found


def test_a_script_that_wants_arguments_is_walked_to_its_command():
    _, found = command_settings(f'if [ $# -lt 1 ]; then echo usage; exit 1; fi\nN=$1\nshift\n{RUN}$N "$@"', "run.sh")
    assert found["actor_rollout_ref.rollout.n"] == "$1"


@pytest.mark.parametrize("text", ["while true; do :; done\n", "f() { f; }; f\n"])
def test_a_script_that_does_not_end_is_refused_in_one_line(text: str):
    with pytest.raises(ConfigError, match=r"run\.sh: "):
        command_settings(text + RUN + "8", "run.sh")


@pytest.mark.parametrize("text", ["{" * 50_000, "{" * 25_000 + "}" * 25_000, "{a,b}" * 10_000, "{1..1}" * 8_000])
def test_braces_cost_what_their_text_costs(text: str):
    lines = 0

    def count(_: object, event: str, __: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = braces(text)
    finally:
        sys.settrace(before)
    assert len(found) == 1  # none of these is a list that a script could mean
    # ten a brace; a walk that starts again at each brace runs thousands
    assert lines < 20 * len(text)


def test_a_script_whose_brackets_do_not_close_is_refused_as_soon_as_its_grammar_has_had_its_time(monkeypatch):
    readings = count()
    monkeypatch.setattr(shell.time, "thread_time", lambda: next(readings) * shell.MOST_PARSING_S / 10)
    with pytest.raises(ConfigError, match=r"run\.sh: .*do not close"):
        command_settings(f"{'((x)) ' * 10_000}{'(' * 20_000}\n{RUN}8", "run.sh")
    assert next(readings) < 20  # a tenth of the time passes between two of them
