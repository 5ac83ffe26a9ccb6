"""Every command that run.html and report.html print is one that the command takes."""

import html
import re
import shlex
from pathlib import Path

import pytest
import yaml
from synthetic_runs import write_run

from ablations.command_text import setting
from ablations.commands.report import main as report
from ablations.commands.report import parse_arguments
from ablations.designs import Arm
from ablations.report.run_page import write_run_page
from ablations.techniques import DAPO
from dapo_lit.cli.command import checked
from dapo_lit.config import Config
from dapo_lit_tools.commands.replay import parse_arguments as parse_replay

REGIMES = sorted(file.stem for file in (Path(__file__).parents[1] / "conf" / "regime").glob("*.yaml"))
OF_MAKE = ("+experiment=dapo", "+regime=joint", "replay.record=[4,8]", "logger.rollouts_every=1")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dapo_lit.cli.study_launch.uncommitted", list)
    monkeypatch.chdir(tmp_path)


def printed(page: Path) -> list[list[str]]:
    """The commands of a page, as the words that a shell makes of them."""
    blocks = re.findall(r"<code>(.*?)</code>", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in html.unescape(block).splitlines()]
    return [shlex.split(line) for line in lines if " -m dapo_lit." in line]


def compose(words: list[str]) -> str:
    """Takes a command as far as it goes without training; its module."""
    module, arguments = words[words.index("-m") + 1], words[words.index("-m") + 2 :]
    takers = {
        "dapo_lit.train": lambda: checked(arguments, Config, None),
        "dapo_lit.report": lambda: parse_arguments(arguments),
        "dapo_lit.replay": lambda: parse_replay(arguments),
    }
    takers[module]()
    return module


def run_of(folder: Path, *typed: str, arm: Arm = Arm(DAPO)) -> Path:  # noqa: B008 (frozen)
    run = write_run(folder, arm, 0, study="single", steps=12, every=3)
    (run / "overrides.txt").write_text("".join(f"{line}\n" for line in typed))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["algorithm"]["own_techniques"] = arm.own
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"replay": {"record": [4, 8]}}))
    return run


@pytest.mark.parametrize(
    "typed",
    [
        OF_MAKE,
        ("+experiment=dapo", "budget.steps=40", "seed=3", "study_name=mine", "runs_dir=elsewhere"),
        ("+experiment=hf", "policy.path=models/mine", "task.path=problems.csv"),
        ("algorithm=naive_grpo",),
        (setting("task.label", "it's (1), $x"),),
        *(("+experiment=dapo", f"+regime={regime}") for regime in REGIMES),
    ],
    ids=" ".join,
)
def test_the_commands_of_a_runs_page_compose(tmp_path: Path, typed: tuple[str, ...]) -> None:
    page = write_run_page(run_of(tmp_path, *typed))
    assert page is not None
    one_more = [] if "algorithm=naive_grpo" in typed else ["dapo_lit.train", "dapo_lit.report"]  # GRPO beside it
    assert [compose(words) for words in printed(page)] == ["dapo_lit.replay", *one_more, "dapo_lit.train"]


PART = {"algorithm.advantage.estimator": "maxrl.maxrl", "algorithm.advantage.options.scale": 0.5}


@pytest.mark.parametrize(
    ("arm", "reference"),
    [
        (Arm(DAPO - {"soft_overlong_punishment"}, PART), "dapo-soft_overlong_punishment"),
        (Arm(DAPO | {"my_techniques.LIGHT"}), "dapo"),
    ],
    ids=["a part", "a technique"],
)
def test_the_page_of_a_run_with_something_of_ones_own_compares_it_with_and_without(
    tmp_path: Path, arm: Arm, reference: str
) -> None:
    typed = [setting(key, value) for key, value in arm.values.items()]
    page = write_run_page(run_of(tmp_path, "+experiment=dapo", "reward.wrong_value=0", *typed, arm=arm))
    assert page is not None
    _, words = printed(page)
    assert compose(words) == "dapo_lit.train"
    assert setting("study.arms", [reference, arm.name]) in words
    assert f"study.reference={reference}" in words
    assert "reward.wrong_value=0" in words
    assert not [word for word in words if word.startswith("algorithm.")]


def test_the_commands_of_the_page_of_a_studys_run_compose(tmp_path: Path) -> None:
    run = run_of(tmp_path, "+experiment=add_soft_punishment", "study.arm='dapo'", "seed=0")
    page = write_run_page(run)
    assert page is not None
    assert [compose(words) for words in printed(page)] == ["dapo_lit.replay", "dapo_lit.report"]


def test_the_commands_of_a_report_compose(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, arm, seed, study="it's (1)", steps=6, every=3)
        for arm in (Arm(DAPO), Arm(DAPO - {"clip_higher"}))
        for seed in range(2)
    ]
    (runs[1] / "replay").mkdir()
    (runs[1] / "replay" / "step_000004.ckpt").touch()
    folder = tmp_path / "it's (1)"
    assert report([str(folder)]) == 0
    assert [compose(words) for words in printed(folder / "report" / "report.html")] == [
        "dapo_lit.replay",
        "dapo_lit.report",
    ]
