"""Every command that run.html and report.html print, and every override that a message names, is taken."""

import ast
import html
import re
import shlex
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from synthetic_runs import write_run

from ablations.command_text import setting
from ablations.commands.report import main as report
from ablations.commands.report import parse_arguments
from ablations.designs import Arm
from ablations.report.run_page import write_run_page
from ablations.techniques import DAPO
from dapo_lit.cli.command import checked
from dapo_lit.cli.overrides import check_overrides, parsed
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.parsing import section_of
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


ROOT = Path(__file__).parents[1]
OVERRIDE = re.compile(
    r"(?<![\w.$/{@-])(\+{0,2}(?:" + "|".join([*Config.model_fields, "experiment", "regime"]) + r")(?:\.\w+)*)=([\w.-]*)"
)


def said() -> dict[str, str]:
    """Every override in a text of the package that is no docstring, with a place that says it. A value that the text
    fills in is left out."""
    found = {}
    for package in ("dapo_lit", "dapo_lit_tools", "ablations"):
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            lone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                text = ""
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone:
                    text = node.value
                for match in OVERRIDE.finditer(text):
                    rest = text[match.end() : match.end() + 1]
                    value = "" if (rest and rest in "\0[({'\"<|$") or match[2].isupper() else match[2].rstrip(".-")
                    found[f"{match[1]}={value}"] = f"{file.relative_to(ROOT)}:{node.lineno}"
    return found


def taken(override: str) -> bool:
    """True if the schema has the key, and takes the value that is given."""
    key, _, value = override.lstrip("+").partition("=")
    if not value and "." not in key:  # a group, whose choice the text fills in
        return True
    try:
        check_overrides([override])
    except ConfigError:
        return False
    field, section = None, Config
    for part in key.split("."):
        if section is None or part not in section.model_fields:  # a group, or a key of a mapping that takes any
            return True
        field = section.model_fields[part]
        section = section_of(field.annotation)
    if not value or section is not None:
        return True
    try:
        TypeAdapter(Annotated[field.annotation, field]).validate_python(parsed(override).value(), strict=False)
    except ValidationError:
        return False
    return True


def test_every_override_that_a_message_names_is_one_that_the_schema_takes() -> None:
    overrides = said()
    assert len(overrides) > 100
    assert {override: place for override, place in overrides.items() if not taken(override)} == {}
    assert not taken("algorithm.clip.hgh=0.28")
    assert not taken("algorithm.clip.high=higher")
