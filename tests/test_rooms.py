"""The arrows between the package's rooms run downwards only, nothing runs in circles, and light rooms stay light."""

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from command_line import run_cli

import ablations
import dapo_lit
import dapo_lit_tools
import math_answers
from dapo_lit.config.sections import Task

PACKAGE = Path(dapo_lit.__file__).parent
ROOT = PACKAGE.parent
TOOLS = Path(dapo_lit_tools.__file__).parent
BELOW = {package.__name__: Path(str(package.__file__)).parent for package in (ablations, math_answers)}
"""Packages that may be installed without dapo_lit, and import nothing of it."""
FOUNDATION = {
    "techniques", "ranks", "config", "data", "rewards", "environments", "engines", "policy", "objective",
    "chat_template", "model_worker",
}  # fmt: skip
STEP = FOUNDATION | {"rollout"}
BUILD = STEP | {"step", "tasks"}
PREFLIGHT = BUILD | {"switches", "build", "math_answers"}
EVALUATION = PREFLIGHT | {"preflight", "runs"}
ARROWS = {
    "techniques": set(),
    "ranks": set(),
    "objective": set(),
    "config": {"techniques"},
    "data": {"chat_template", "math_answers"},
    "model_worker": {"rewards"},
    "chat_template": {"model_worker", "rewards"},
    "tasks": {"data", "rewards", "environments", "math_answers"},
    "rewards": {"math_answers"},
    "environments": {"rewards"},
    "policy": {"objective", "chat_template", "model_worker", "rewards"},
    "engines": {"ranks"},
    "rollout": {"data", "rewards", "environments", "engines", "ranks"},
    "step": STEP,
    "switches": BUILD,
    "build": BUILD,
    "preflight": PREFLIGHT,
    "runs": {"config", "data", "rewards", "rollout", "engines", "ranks"},
    "evaluation": EVALUATION,
    "forecast": {"config", "objective", "policy", "techniques"},
    "lit": EVALUATION | {"evaluation"},
    "cli": {"chat_template", "config", "runs", "data", "rollout", "engines", "ranks", "step", "techniques"},
}  # fmt: skip
LOWEST = {"imports", "kernels", "log", "seeds"}
"""Files at the top that every room may import, and which import no room."""
READING = {
    "ablations": set(),
    "ablations.files": {"ablations"},
    "ablations.read": {"ablations", "ablations.files"},
    "ablations.compare": {"ablations", "ablations.read"},
    "ablations.figures": {"ablations", "ablations.read", "ablations.compare"},
    "ablations.report": {
        "ablations", "ablations.files", "ablations.read", "ablations.compare", "ablations.figures",
    },
}  # fmt: skip
"""Files at the top of `ablations` are one room. Its commands may import every other."""
HANDED = {"ablations", "ablations.files"}
"""What every room of dapo_lit may import: errors, borders, how the files of a run folder are written and read."""
JUDGING = {"ablations.read", "ablations.compare"}
ARROWS = {name: below | LOWEST | HANDED for name, below in ARROWS.items()} | {
    name: LOWEST | {"ablations"} for name in LOWEST
}
ARROWS["cli"] |= JUDGING
ARROWS |= READING | {"ablations.commands": {*READING}, "math_answers": set()}
"""What each room may import. Files at the top of the package that are not named here are commands: they may import
every room, and no room imports them. The tools (dapo_lit_tools) may import every room too; no file of dapo_lit imports
them."""
TASKS = {f"dapo_lit.tasks.{name}" for name in get_args(Task.model_fields["name"].annotation)}
FILES = sorted(file for package in (PACKAGE, TOOLS, *BELOW.values()) for file in package.rglob("*.py"))
PROJECT = ("dapo_lit", "dapo_lit_tools", *BELOW)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file) for file in FILES}


@cache
def imported_modules(file: Path) -> set[str]:
    """Modules of the project's packages that `file` imports, anywhere in it and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PROJECT:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
    return found - {"dapo_lit", "dapo_lit_tools", "ablations"}


def room_of(module: str) -> str:
    package, *parts = module.split(".")
    if package == "ablations":
        return ".".join(["ablations", *parts[:1]]) if parts[:1] and (BELOW[package] / parts[0]).is_dir() else package
    return parts[0] if package == "dapo_lit" else package


def imported_upwards(file: Path) -> set[str]:
    """The rooms that a file imports although they are not below its own."""
    imported = {room_of(module) for module in imported_modules(file)}
    if file.is_relative_to(TOOLS):
        return set()
    if file.parent == PACKAGE and file.stem not in ARROWS:  # a command, or the package itself
        return imported & {"dapo_lit_tools"}
    room = room_of(module_name(file))
    return imported - ARROWS[room] - {room}


def test_a_file_imports_downwards_only():
    found = {str(file.relative_to(ROOT)): imported_upwards(file) for file in FILES}
    assert {file: rooms for file, rooms in found.items() if rooms} == {}


def test_every_room_that_may_be_imported_is_there():
    assert {*ARROWS} <= {room_of(module) for module in MODULES - {"dapo_lit"}}
    assert set().union(*ARROWS.values()) <= {*ARROWS}


def test_no_modules_import_each_other_in_a_circle():
    graph = {module_name(file): imported_modules(file) for file in FILES}
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])


def test_every_module_is_imported_or_named_by_another_file_or_is_a_command():
    imported = set().union(*map(imported_modules, FILES))
    configs = [*(ROOT / "conf").rglob("*.yaml"), *(folder / "pyproject.toml" for folder in BELOW.values())]
    texts = {file: file.read_text() for file in [*FILES, *configs] if file.is_file()}
    for file in FILES:
        module = module_name(file)
        # Commands are started by their names, and a task's file is found by the task's.
        is_named = file.parent in (PACKAGE, TOOLS / "commands") or module in TASKS
        if module not in imported and not is_named and file.stem != "__init__":
            assert any(module in text for other, text in texts.items() if other != file), module


HEAVY = {"torch", "transformers", "lightning", "pandas", "matplotlib", "vllm"}


def loaded_after(*stages: list[str]) -> list[set[str]]:
    """What is loaded after the modules of each stage, which a new process imports one stage after the other."""
    code = "import importlib, json, sys\nfor stage in json.loads(sys.argv[1]):\n"
    code += "    [importlib.import_module(name) for name in stage]\n    print(json.dumps([*sys.modules]))"
    command = [sys.executable, "-c", code, json.dumps(stages)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [{*json.loads(line)} for line in done.stdout.splitlines()]


def test_ablations_loads_neither_torch_nor_dapo_lit_and_a_light_room_no_heavy_library():
    light = {"techniques", "objective", "ablations", "math_answers", "config"}
    names = [*map(module_name, FILES)]
    evidence, rooms = loaded_after(
        [name for name in names if name.startswith("ablations")],
        [name for name in names if light & {".".join(name.split(".")[1:3]), *name.split(".")[:2]}],
    )
    assert evidence & {"torch", "dapo_lit", "math_answers"} == set()
    assert rooms & {"lightning", "transformers", "vllm", "hydra"} == set()


def test_a_command_loads_no_heavy_library_before_its_command_line_is_checked():
    """Torch and Lightning take ten seconds to import, which nobody should wait for to see `--help` or a typo."""
    most, readers = loaded_after(
        [
            *(f"dapo_lit.{name}" for name in ("train", "evaluate", "export", "ablate", "advise", "decide")),
            *(f"dapo_lit_tools.commands.{name}" for name in ("convert", "docs", "plan", "replay", "schema")),
            "dapo_lit.__main__",
        ],
        ["dapo_lit.status", "dapo_lit.report"],
    )
    assert most & HEAVY == set()
    assert readers & HEAVY <= {"pandas"}


LEFT_OUT = (
    "dapo_lit.engines.vllm", "dapo_lit.cli.study_launch", "dapo_lit.cli.study_plan", "dapo_lit.cli.workers",
    "dapo_lit.data.hub", "dapo_lit.data.sources", "dapo_lit.environments", "dapo_lit.policy.pretrain",
    "dapo_lit.rewards.worker", "dapo_lit.tasks.parity", "dapo_lit.tasks.string", "dapo_lit_tools", "math_answers.parse",
    "math_answers.compare", "math_answers.free_text",
)  # fmt: skip
"""What a run on sums has no use for: what is built for another engine, task, rule or study."""


@pytest.mark.usefixtures("cache")
def test_a_run_loads_what_it_uses():
    done = run_cli(cwd=ROOT, module="tests.loaded_by_a_run")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "dapo_lit.engines.torch_engine.engine" in loaded
    assert "dapo_lit.tasks.four_sums" in loaded
    assert [name for name in loaded if name.startswith(LEFT_OUT)] == []
