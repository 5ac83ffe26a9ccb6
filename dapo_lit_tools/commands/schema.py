"""Writes JSON schemas of the configs, by which an editor completes keys, shows what they mean and underlines a typo.

python -m dapo_lit.schema output=schemas        # a file for each group, and the settings for VS Code
python -m dapo_lit.schema experiment            # one schema, printed
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablations.arguments import CommandParser
from ablations.screen import on_screen
from dapo_lit.config.shipped import is_group
from dapo_lit_tools.json_schema import schema_of, schemas


def every_schema() -> dict[str, dict[str, Any]]:
    """Name of a file or folder in conf/ -> its JSON schema."""
    from dapo_lit_tools.planning.hardware import Hardware, PlanConfig

    made = schemas()
    for tree in made.values():
        for section in (tree, *tree.get("$defs", {}).values()):
            _name_parts(section)
    return {**made, "plan": schema_of(PlanConfig), "hardware": schema_of(Hardware)}


def _name_parts(section: dict[str, Any]) -> None:
    """Gives the keys that name a part of the algorithm the names of the parts that there are."""
    from dapo_lit.switches.parts import NO_PART, SLOTS

    for slot in SLOTS:
        of, _, key = slot.key.rpartition(".")
        field, text = section.get("properties", {}).get(key, {}), {"type": "string"}
        # Several schemas share their sections: each is done once.
        if section.get("title") == (of.capitalize() or "Algorithm") and text in field.get("anyOf", ()):
            names = [*slot.built_in, *([NO_PART] if slot.may_be_empty else [])]
            place = field["anyOf"].index(text)
            field["anyOf"][place : place + 1] = [{"enum": names}, text | {"pattern": r"\w\.\w"}]


def settings_of_vs_code(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """The value of `yaml.schemas` (the extension redhat.vscode-yaml): schema file -> the files that it is for."""
    return {
        str(folder / f"{name}.json"): [f"conf/{name}/*.yaml" if is_group(name) else f"conf/{name}.yaml"]
        for name in names
    }


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = CommandParser(prog="python -m dapo_lit.schema", description=__doc__)
    made = every_schema()
    parser.add_argument("name", nargs="?", choices=sorted(made), help="a file or folder of conf/")
    parser.add_argument("--output", type=Path, help="the folder to write all of them to")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.output is None:
        print(json.dumps(made[options.name or "config"], indent=1))
        return 0
    chosen = [options.name] if options.name else list(made)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        (options.output / f"{name}.json").write_text(json.dumps(made[name], indent=1) + "\n", encoding="utf-8")
    print("In .vscode/settings.json, with the extension redhat.vscode-yaml:")
    print(json.dumps({"yaml.schemas": settings_of_vs_code(options.output, chosen)}, indent=2))
    print(f"In one file, for any editor: # yaml-language-server: $schema={options.output}/experiment.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
