"""The commands as functions: the runs of the command line, and results as objects."""

import ast
import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import SMALL, run_cli

from ablations.errors import UserError
from dapo_lit import api, compose, report, train
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier

EXPERIMENT, *SETTINGS = SMALL
NOT_COMPARED = ("perf/", "memory/", "wall_s", "time")


class Forked:
    """A command's process as api.py sees it, forked from the server of command_line.py."""

    def __init__(self, command: list[str], **_: object) -> None:
        done = run_cli(*command[4:], cwd=Path.cwd(), module=command[3])
        self.stdout, self.code = (done.stdout + done.stderr).splitlines(keepends=True), done.returncode

    def wait(self) -> int:
        return self.code


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Commands start without importing torch again; that they start at all has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "subprocess", SimpleNamespace(Popen=Forked, PIPE=None, STDOUT=None))
        yield


@pytest.fixture(scope="module")
def trained(forked: None, tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    folder = tmp_path_factory.mktemp("api")
    settings = {"logger.rollouts_every": 1, "budget.steps": 2}
    return train("four_sums", *SETTINGS, seed=3, settings=settings, runs_dir=folder / "runs")


def test_a_run_from_python_is_that_of_the_command(trained: api.Run, tmp_path: Path) -> None:
    assert EXPERIMENT == "+experiment=four_sums"
    done = run_cli(*SMALL, "seed=3", "logger.rollouts_every=1", "budget.steps=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("metrics.jsonl")
    table = trained.metrics
    assert list(table.index) == [0, 1, 2]
    for row in map(json.loads, file.read_text().splitlines()):
        for key, value in row.items():
            if key in table and isinstance(value, float) and not key.startswith(NOT_COMPARED):
                assert table.loc[row["step"], key] == value, key


def test_a_run_has_its_completions_its_config_its_page_and_a_plot(trained: api.Run) -> None:
    assert trained.recorded == [1, 2]
    assert {"response", "correct", "advantage", "kept"} <= {*trained.completions(2).columns}
    with pytest.raises(UserError, match=r"step 7 .*kept: 1, 2"):
        trained.completions(7)
    assert trained.config["seed"] == 3
    assert trained.page.is_file()
    assert trained.plot("rollout/entropy").axes[0].get_lines()
    assert "step 2" in trained._repr_html_()


def test_a_mistake_is_the_commands_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "subprocess", subprocess)
    with pytest.raises(UserError, match=r"budget\.steps: .* 0, .*-1"):
        train("four_sums", steps=-1, runs_dir=tmp_path)
    with pytest.raises(UserError, match=r"none: not readable|no such folder|none"):
        report(tmp_path / "none")
    with pytest.raises(UserError, match="write it into a file"):
        train("four_sums", reward=lambda prompts, completions: [], runs_dir=tmp_path)


def test_settings_reach_free_mappings_and_flags_and_overrides_the_command(tmp_path: Path, monkeypatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(api, "_command", lambda name, *arguments, **_: given.extend(arguments))
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults: [four_sums]\n")
    loss = {"algorithm.loss": "my_losses.wide", "algorithm.loss_options": {"width": 0.3}, "callbacks.mine.deep": 1}
    train("mine", f"--config-dir={tmp_path}", settings=loss)
    config = compose(*given).model_dump()
    assert config["algorithm"]["loss_options"] == {"width": 0.3}
    assert config["callbacks"] == {"mine": {"deep": 1}}
    with pytest.raises(UserError, match="seed=1,2: several values"):
        train("four_sums", "seed=1,2")


def test_a_run_or_a_study_that_is_not_there_is_named(tmp_path: Path) -> None:
    run, study = api.Run(tmp_path / "none"), api.StudyResult(tmp_path / "none", tmp_path / "none" / "report.html")
    for read in (lambda: run.metrics, lambda: run.config, lambda: study.effects, lambda: study.runs, run.plot):
        with pytest.raises(UserError, match=str(tmp_path / "none")):
            read()
    assert "no rows of" in run._repr_html_()
    packed = Path(__file__).parents[1] / "experiments" / "table1_joint"
    with pytest.raises(UserError, match="packed"):
        _ = api.StudyResult(packed, packed / "report.html").runs
    with pytest.raises(TypeError, match="folder"):
        report()


def test_rows_and_a_function_of_ones_own_train(forked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dapo_lit.build.components import RunComponents

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("reward_for_api.py").write_text(
        "def score(prompts, completions, answer, **columns):\n"
        "    return [float(right in text) for right, text in zip(answer, completions)]\n"
    )
    import reward_for_api

    rows = [{"problem": f"{a} + {b} = ", "answer": str(a + b)} for a in range(1, 4) for b in range(1, 4)]
    policy = RunComponents(compose("+experiment=four_sums")).policy_folder
    given = {"task.template": "plain", "task.eval_path": None, "evaluation.every": 0, "study_name": "own"}
    run = train(
        "four_sums", *SETTINGS, steps=1, model=policy, data=rows, reward=reward_for_api.score, settings=given
    )  # fmt: skip
    assert run.path == Path("runs/own/dapo/seed_0")
    assert run.config["reward"]["function"] == "reward_for_api.score"
    (file,) = Path("runs/data").iterdir()
    assert [json.loads(line) for line in file.open(encoding="utf-8")] == rows
    assert run.metrics["rollout/accuracy"].iloc[-1] > 0


def test_a_reward_is_any_callable_that_a_module_has_at_its_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "callable_rewards.py").write_text(
        "import functools\n"
        "def score(problems, completions, right='2'):\n"
        "    return [text == right for text in completions]\n"
        "other_name = score\n"
        "part = functools.partial(score, right='3')\n"
        "class Judge:\n"
        "    def __call__(self, problems, completions):\n"
        "        return [text == '4' for text in completions]\n"
        "    @staticmethod\n"
        "    def score(problems, completions): ...\n"
        "judge = Judge()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import callable_rewards

    for name, right in (("score", "2"), ("part", "3"), ("judge", "4")):
        path = api._function(getattr(callable_rewards, name), tmp_path)
        assert path == f"callable_rewards.{name}"
        with Verifier(rule="numeric", extraction="number", function=path, workers=1) as made:
            scores = made.score([(RewardProblem("p", "?", right), text) for text in "234"])
        assert [score.correct for score in scores] == [text == right for text in "234"]
    for nowhere in (callable_rewards.Judge.score, functools.partial(callable_rewards.score), callable_rewards.Judge()):
        with pytest.raises(UserError, match="no module has it") as refused:
            api._function(nowhere, tmp_path)
        assert "\n" not in str(refused.value)


def test_rows_may_be_a_table_and_have_numbers_of_numpy(tmp_path: Path) -> None:
    rows = [{"problem": "1+2=", "answer": np.int64(3), "levels": np.arange(2)}]
    file = api._file_of(rows, tmp_path)
    assert json.loads(Path(file).read_text()) == {"problem": "1+2=", "answer": 3, "levels": [0, 1]}
    assert api._file_of(pd.DataFrame(rows), tmp_path) == file
    for wrong, message in (
        ({"problem": "1+2=", "answer": "3"}, "are mappings"), ([], "are mappings"), ([("1+2=", 3)], "are mappings"),
        ([{"problem": "1+2=", "answer": object()}], "texts, numbers and lists"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            api._file_of(wrong, tmp_path)  # type: ignore[arg-type]


def test_settings_may_be_numbers_and_arrays_of_numpy_and_torch() -> None:
    given = {
        "seed": np.int64(1), "algorithm.optimizer.lr": np.float64(1e-5), "preflight": np.bool_(False),
        "algorithm.correction.band": torch.tensor([0.5, 2.0]), "study.seeds": np.arange(3), "study.bases": range(2),
    }  # fmt: skip
    assert api._settings(given) == [
        "seed=1", "algorithm.optimizer.lr=1e-05", "preflight=false", "algorithm.correction.band=[0.5, 2.0]",
        "study.seeds=[0, 1, 2]", "study.bases=[0, 1]",
    ]  # fmt: skip


def test_a_study_from_python_has_its_effects(forked: None, tmp_path: Path) -> None:
    found = api.multirun(
        "pair", EXPERIMENT, *SETTINGS, "+study=leave_one_out", "study.arms=[dapo-clip_higher,dapo]", "study.bases=[]",
        "study.reference=dapo-clip_higher", seeds=[0, 1],
        settings={"study.metric": "rollout/accuracy", "study.workers": 1, "study.pilot": True, "budget.steps": 1},
        runs_dir=tmp_path,
    )  # fmt: skip
    assert found.page.is_file()
    assert len(found.runs) == 4
    assert list(found.effects["comparison"])[:1] == ["clip-higher"]
    assert found.report["study"] == "pair"
    assert report(tmp_path / "pair", output=tmp_path / "again").report["outcomes"] == found.report["outcomes"]


def test_a_reader_that_is_gone_ends_the_command_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "command"
    command.write_text(
        f"#!{sys.executable} -S\n"
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"  # a training's, which saves itself
        f"os.chdir({str(tmp_path)!r})\n"
        "try:\n"
        "    print('step 1', flush=True)\n"
        "    time.sleep(20)\n"
        "    open('trained_on', 'x').close()\n"
        "except KeyboardInterrupt:\n"
        "    open('saved', 'x').close()\n"
    )
    command.chmod(0o755)
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(api, "subprocess", subprocess)
    monkeypatch.setattr(sys, "executable", str(command))
    with os.fdopen(write, "w") as gone, open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", gone)
        with pytest.raises(BrokenPipeError):
            api._command("train")
        os.dup2(nowhere.fileno(), write)  # closing it would fail as well
    assert {file.name for file in tmp_path.iterdir()} == {"command", "saved"}


def test_the_names_are_functions_and_modules_in_any_order_of_imports() -> None:
    code = (
        "import sys\n"
        "for first in ('import dapo_lit.train', 'from dapo_lit.train import check_study', 'import dapo_lit'):\n"
        "    for name in [n for n in sys.modules if n.partition('.')[0] in ('dapo_lit', 'ablations')]:\n"
        "        del sys.modules[name]\n"
        "    exec(first)\n"
        "    from dapo_lit import train, ablate, report\n"
        "    print(*map(callable, (train, ablate, report)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 9
    code = (
        "import dapo_lit; print({'train', 'ablate', 'report', 'api'} <= {*dir(dapo_lit)});"
        "print(*map(callable, (dapo_lit.train, dapo_lit.ablate, dapo_lit.report, dapo_lit.api.multirun)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 5
    assert list(inspect.signature(train).parameters)[:4] == ["experiment", "overrides", "regime", "steps"]


SCRIPT = """
import re
from math import floor as down
from dapo_lit import api
PATTERN, SCALE, BASE = re.compile(r"-?[0-9]+"), 2, {"right": 1.0}
def last(text: str):
    found = PATTERN.findall(text)
    return found[-1] if found else None
def correct(prompts, completions, answer, **columns):
    return [BASE["right"] if last(text) == right else 0.0 for text, right in zip(completions, answer)]
def short(completions, **columns):
    return [float(down(len(text) / SCALE) < 9) for text in completions]
print(api._rewards([correct, short], api.Path("code"), [1.0, 0.5])[1])
"""


def test_rewards_of_a_script_are_written_with_what_they_use_and_score_in_workers(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    said = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    keys = ast.literal_eval(said.stdout)
    weights = keys["reward.weights"]
    assert [*weights.values()] == [1.0, 0.5]
    monkeypatch.syspath_prepend(tmp_path / "code")
    problem = RewardProblem("p", "2 + 3?", "5")
    for path, right in ((keys["reward.function"], [True, False]), ([*weights][1], [True, False])):
        with Verifier(rule="numeric", extraction="number", function=path, workers=1) as made:
            scores = made.score([(problem, "so it is 5"), (problem, "well, that may be 7, or so")])
        assert [score.correct for score in scores] == right


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("api._rewards(lambda completions, **k: [], api.Path('c'), None)", "write it as `def`"),
        ("api.train('hf', learning_rate=1e-6)", "settings={'algorithm.optimizer.lr': ...}"),
        ("api.train('hf', frobnicate=1)", "no argument frobnicate"),
        ("api._rewards([correct, short], api.Path('c'), [1.0])", "a weight each"),
    ],
)
def test_what_cannot_be_given_from_python_is_said_in_one_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "script.py").write_text(
        f"{SCRIPT}\ntry:\n    {line}\nexcept api.UserError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said in done.stdout
