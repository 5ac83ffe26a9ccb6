"""The room reads downwards: its docstring lists every file, and each file imports only files below it."""

import ast
import re
from pathlib import Path

import dapo_lit.step

FOLDER = Path(dapo_lit.step.__file__).parent
OUTER = ("lightning", "dapo_lit.lit", "dapo_lit.build", "dapo_lit.switches", "dapo_lit.preflight")
ORDER = re.findall(r"^    (\w+) {2,}\S", dapo_lit.step.__doc__, re.MULTILINE)


def imported(name: str) -> list[str]:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [module.rpartition(".")[2] for module in modules if module.startswith("dapo_lit.step.")]


def test_the_docstring_lists_every_file():
    assert sorted(ORDER) == sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__init__")


def test_a_file_imports_only_files_below_it():
    for place, name in enumerate(ORDER):
        assert set(imported(name)) <= set(ORDER[place + 1 :]), name


def test_the_step_sees_no_lightning_no_switch_and_no_module():
    for name in ORDER:
        tree = ast.parse((FOLDER / f"{name}.py").read_text())
        found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not [m for m in found if m.startswith(OUTER)], name
