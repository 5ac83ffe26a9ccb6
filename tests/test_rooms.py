"""The arrows between the package's rooms run downwards only, and the lower rooms stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dapo_lit

PACKAGE = Path(dapo_lit.__file__).parent
ROOMS = {"lit", "study", "rollout", "policy", "rewards", "data", "objective", "config"}
MAY_IMPORT = {
    "lit": {"rollout", "policy", "rewards", "data", "objective", "config"},
    "study": set(),
    "rollout": {"rewards", "data", "policy"},
    "policy": {"objective"},
    "rewards": set(),
    "data": set(),
    "objective": set(),
    "config": set(),
}


def imports(file: Path) -> set[str]:
    """Rooms and top-level modules of the package that `file` imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name and name.startswith("dapo_lit.")}
    return found


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_file_imports_downwards_only(file):
    inside = file.relative_to(PACKAGE).parts
    room = inside[0] if inside[0] in ROOMS else file.stem
    if room in MAY_IMPORT:
        assert imports(file) <= MAY_IMPORT[room] | {room}


@pytest.mark.parametrize("room", ["objective", "study"])
def test_a_light_room_loads_no_heavy_library(room):
    modules = ", ".join(
        f"dapo_lit.{room}.{file.stem}" for file in (PACKAGE / room).glob("*.py") if file.stem != "__init__"
    )
    code = (
        f"import sys, {modules}; print([m for m in ('lightning', 'transformers', 'vllm', 'hydra') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
