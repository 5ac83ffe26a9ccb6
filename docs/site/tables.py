"""Tables that the site makes from the repository, or takes from benchmarks/results/ and tests/parity/.

A page has a line `<!-- table: NAME -->` where the hooks put one. `python docs/site/tables.py NAME` prints it.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the site's environment has the package's light dependencies, not the package

from key_use import use_of  # noqa: E402

from ablations.techniques import REGISTER  # noqa: E402
from dapo_lit.cli.config_tree import composed_tree, resolved  # noqa: E402
from dapo_lit.config import Config  # noqa: E402

Schema = dict[str, Any]


IN_WORDS = {"algorithm.optimizer": "learning rate, schedule and AdamW"}
"""Keys with a section of their own and a title in words: the search weighs titles most, and keys are abbreviations."""


def keys() -> str:
    """Every key of the training config: allowed values, the default run's value, its docstring, who uses it."""
    schema, default = Config.model_json_schema(), resolved(composed_tree([]))
    rows: dict[str, list[str]] = {}
    for key, spec in _leaves(schema, schema["$defs"]):
        section = key.split(".")[0] if "." in key else "The run"
        section = next((f"{start}: {words}" for start, words in IN_WORDS.items() if key.startswith(start)), section)
        switch = REGISTER.get(key.removeprefix("algorithm.techniques."))
        text = switch.description if switch else spec.get("description", "")
        meaning = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
        cells = (f"`{key}`", _values(spec), _default(default, key), meaning, use_of(key).words())
        rows.setdefault(section, []).append(f"| {' | '.join(cells)} |")
    head = "| key | values | default | meaning | used by |\n|---|---|---|---|---|\n"
    parts = [f"### {section}\n\n{head}" + "\n".join(lines) + "\n" for section, lines in rows.items()]
    return "\n".join(parts)


def key_names() -> list[str]:
    """Every key of the training config that holds a value."""
    schema = Config.model_json_schema()
    return [key for key, _ in _leaves(schema, schema["$defs"])]


def _leaves(spec: Schema, named: dict[str, Schema], prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Dotted keys that hold a value, with their schema; a section that may be null is a value and a section."""
    for name, field in spec["properties"].items():
        options = field.get("anyOf", [field])
        held = [option.get("additionalProperties", True) for option in options] + options  # of a mapping of sections
        sections = [named[part["$ref"].split("/")[-1]] for part in held if isinstance(part, dict) and "$ref" in part]
        if not sections or len(options) > 1:
            yield prefix + name, field
        for section in sections:
            if "properties" in section:
                yield from _leaves(section, named, f"{prefix}{name}.")


def _values(spec: Schema) -> str:
    """The values that a schema allows, in words."""
    if "anyOf" in spec:
        return " or ".join(_values(option) for option in spec["anyOf"])
    if "enum" in spec:
        return ", ".join(f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in spec["enum"])
    if "const" in spec:
        return f"`{spec['const']}`"
    kind = spec.get("type", "object")
    words = {"string": "text", "boolean": "true, false", "null": "`null`", "object": "mapping", "array": "list"}
    bounds = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
    limits = ", ".join(f"{sign} {_number(spec[bound])}" for bound, sign in bounds if bound in spec)
    return f"{words.get(kind, kind)} {limits}".strip()


def _number(value: float) -> str:
    return "2³²" if value == 2**32 else f"{value:g}"


def _default(tree: dict[str, Any], key: str) -> str:
    """The default run's value of a key; a mapping with content is named only."""
    value: Any = tree
    for part in key.split("."):
        if not isinstance(value, dict):
            return ""
        value = value.get(part)
    if isinstance(value, dict) and value:
        return "in the file"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def rooms() -> str:
    """Each room with its first line of documentation, what it imports and its size; the sizes of tests and conf."""
    package = ROOT / "dapo_lit"
    found = {
        file.parent.relative_to(package).as_posix().replace("/", "."): file for file in package.glob("**/__init__.py")
    }
    names = [name for name in found if name != "." and "." not in name]
    outside = [file.parent.relative_to(ROOT).as_posix() for file in sorted((ROOT / "ablations").glob("**/__init__.py"))]
    outside += ["dapo_lit_tools", "math_answers"]
    found |= {name: ROOT / name / "__init__.py" for name in outside}
    rows = []
    for name in [*names, *outside]:
        top = name == "ablations"  # its rooms have lines of their own
        files = list(found[name].parent.glob("*.py") if top else found[name].parent.rglob("*.py"))
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
        imported = re.findall(r"^ *(?:from|import) (?:dapo_lit\.)?(ablations\.\w+|\w+)", text, re.M)
        rooms_of = {word.replace(".", "/") for word in imported}
        below = {room if room in outside else room.partition("/")[0] for room in rooms_of} - {name}
        holds = (ast.get_docstring(ast.parse(found[name].read_text(encoding="utf-8"))) or "").splitlines()[0]
        below &= {*names, "techniques", *outside}
        count, lines = _count(iter(files))
        rows.append(
            (
                lines,
                f"| `{name}` | {holds} | {', '.join(sorted(below))} | {count} | {lines:,} |",
            )
        )
    ordered = [row for _, row in sorted(rows, reverse=True)]
    whole = (("**dapo_lit**", package, "**/*.py"), ("**ablations**", ROOT / "ablations", "**/*.py"))
    for name, folder, kind in (("files at the top", package, "*.py"), *whole):
        ordered.append("| {} | | | {} | {:,} |".format(name, *_count(folder.glob(kind))))
    for name, kind in (("tests", "*.py"), ("conf", "*.yaml")):
        ordered.append("| **{}** | | | {} | {:,} |".format(name, *_count((ROOT / name).rglob(kind))))
    return "\n".join(["| room | holds | imports | files | lines |", "|---|---|---|---:|---:|", *ordered]) + "\n"


def _count(files: Iterator[Path]) -> tuple[int, int]:
    lengths = [len(file.read_text(encoding="utf-8").splitlines()) for file in files]
    return len(lengths), sum(lengths)


def calibration() -> str:
    """Each technique in each calibrated regime: effects of its extreme setting and of the placebo."""
    lines = [
        "| regime | technique | outcome | extreme setting | d | placebo | d | admitted | held-out accuracy |",
        "|---" * 9 + "|",
    ]
    for file in sorted((ROOT / "conf" / "regime").glob("*.calibration.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        for row in found["techniques"]:
            extreme, placebo = row["doses"][-1], row["placebo"]
            cells = [
                f"[{found['regime']}](../experiments/calibrate_{found['regime']})",
                REGISTER[row["technique"]].label,
            ]
            cells += [f"`{extreme['outcome']}`", calibrated_effect(extreme), f"{extreme['d']:.1f}"]
            cells += [calibrated_effect(placebo), f"{placebo['d']:.1f}", "yes" if row["admitted"] else "no"]
            cells.append(calibrated_effect(row["accuracy"]) if row.get("accuracy") else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def calibrated_effect(effect: dict[str, Any]) -> str:
    """Mean and interval, of shares and accuracies in points."""
    share = effect["outcome"].endswith(("_frac", "accuracy")) or "/avg@" in effect["outcome"]
    digits, scale = (1, 100) if share else (2, 1)
    mean, low, high = (scale * effect[part] for part in ("mean", "low", "high"))
    return f"{mean:+.{digits}f}{' points' if share else ''} [{low:.{digits}f}, {high:.{digits}f}]"


def written(name: str) -> str:
    """A table that a script has written: benchmarks/results/NAME.md, or tests/parity/fidelity.md."""
    places = (ROOT / "benchmarks" / "results" / f"{name}.md", ROOT / "tests" / "parity" / f"{name}.md")
    return next(place.read_text(encoding="utf-8") for place in places if place.is_file())


MADE = {"keys": keys, "rooms": rooms, "calibration": calibration}


def table(name: str) -> str:
    """The table of this name, made here or by a script."""
    return MADE[name]() if name in MADE else written(name)


if __name__ == "__main__":
    print(table(sys.argv[1]))
