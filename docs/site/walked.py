"""What lies on the roads that people walk (benchmarks/results/roads.json), and which building imports which."""

import ast

from cells import ROOT
from measured import results

DOES = {
    "dapo_lit": "trains, evaluates, launches studies",
    "ablations": "evidence from the runs of any trainer",
    "math_answers": "answers as text",
    "dapo_lit_tools": "plans, replays, conversion, looks at a machine",
}
"""The buildings, and what each does."""


def imports(building: str) -> list[str]:
    """The other buildings that its files import, anywhere in them."""
    found: set[str] = set()
    for file in (ROOT / building).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
    return [name for name in DOES if name in found - {building} and (ROOT / name).is_dir()]


def floors() -> str:
    """The buildings as a picture: each above those that it imports, which its arrow names."""
    present = [name for name in DOES if (ROOT / name).is_dir()]
    below = {name: imports(name) for name in present}

    def height(name: str) -> int:
        return 1 + max(map(height, below[name]), default=-1)

    by_floor = [[name for name in present if height(name) == floor] for floor in range(len(present))]
    floors = [names for names in reversed(by_floor) if names]
    lines = []
    for names in floors:
        lines.append("     ".join(f"[ {name}: {DOES[name]} ]" for name in names))
        if names is not floors[-1]:
            lines.append("\n".join(f"      |  {name} imports {', '.join(below[name])}" for name in names) + "\n      v")
    return "```console\n" + "\n".join(lines) + "\n```"


def buildings() -> str:
    """Each building with what it imports, its size, and the share of it that any road reached."""
    rows = [
        f"| `{name}` | {DOES[name]} | {', '.join(f'`{other}`' for other in imports(name)) or 'nothing of these'} | "
        f"{part['files']} | {part['lines']:,} | {part['reached']:.0%} | {part['reached_inside']:.0%} |"
        for name, part in results("roads")["buildings"].items()
    ]
    head = "| building | does | imports | files | lines | reached | inside functions |"
    return "\n".join([head, "|---|---|---|---:|---:|---:|---:|", *rows]).replace("%", " %")


def roads() -> str:
    """Each road with its seconds, and what of the code it called and imported."""
    rows = [
        f"| {road['does']} | {road['seconds']} | {road['files_called']} | {road['lines_called']:,} | "
        f"{road['files_imported']} | {road['lines_imported']:,} | {road['executable_imported']:,} |"
        for road in results("roads")["roads"].values()
    ]
    head = "| road | s | files called | lines called | files imported | their lines | executable |"
    walked = "" if results("roads")["vllm"] else " vLLM was not there, so its engines were not walked."
    said = f"\n\nWorkers of rewards are killed at the end, and leave no trace.{walked}"
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|---:|", *rows]) + said
