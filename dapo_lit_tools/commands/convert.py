"""Turns a run of verl's or TRL's into the command here and into its ablation, and says what does not come along.

    dapo-lit convert run_dapo_qwen2.5_32b.sh        # verl: a script, or a YAML file of its config
    dapo-lit convert train.py                       # TRL: GRPOConfig(...) and GRPOTrainer(...) in Python
    dapo-lit convert python grpo.py --num_generations 16 --learning_rate 1e-6

The script is read as text: nothing in it is imported, run or filled in by a shell. What it leaves to its trainer's
defaults is in the command where that differs from the default here. Exit codes: 0; 2 if nothing could be read, or if
the command would be refused for other reasons than what is to be set by hand.
"""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.arguments import CommandParser
from ablations.command_text import setting
from ablations.errors import UserError
from ablations.screen import on_screen
from ablations.trainer import flatten
from dapo_lit.config import ConfigError
from dapo_lit.config.identity import put
from dapo_lit.config.shipped import is_group
from dapo_lit_tools.conversion.ablation import ablation
from dapo_lit_tools.conversion.conversion import convert
from dapo_lit_tools.conversion.converted import WANTED, Conversion
from dapo_lit_tools.conversion.prompts import fit_prompt
from dapo_lit_tools.conversion.shell_text import in_lines


def conversion(script: Sequence[str]) -> tuple[str, Conversion]:
    """The trainer that a script or a command line is for, and what became of its settings."""
    from dapo_lit_tools.conversion.foreign_scripts import command_settings, read_script

    if len(script) == 1 and " " not in script[0]:
        system, settings = read_script(Path(script[0]))
    else:
        system, settings = command_settings(script[0] if len(script) == 1 else shlex.join(script), "the command line")
    found, given = convert(system, settings), len(settings)
    if given > 3 and len(found.unknown) > UNKNOWN * given:
        raise ConfigError(
            f"{len(found.unknown)} of {given} settings are not in the table of {system}'s keys ("
            f"{', '.join(found.unknown[:5])}, ...): another trainer's script, or a version that is not known"
        )
    fit_prompt(system, found)
    return system, found


UNKNOWN = 0.5
"""A larger share of settings that the table lacks is no conversion."""


def run_of(settings: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The arguments of `dapo-lit train`, without those that its groups have already; and the config of that run."""
    from dapo_lit.cli.config_tree import composed_tree, resolved

    groups = [setting(key, value) for key, value in settings.items() if is_group(key)]
    # Without interpolations, or a text of the script's could ask for variables of this environment.
    tree = resolved(composed_tree([*groups, *(setting(key, WANTED[key]) for key in WANTED)]))
    before = flatten(tree)
    keys = {key: value for key, value in settings.items() if not is_group(key)}
    kept = {key: value for key, value in keys.items() if key not in before or before[key] != value}
    for key, value in kept.items():
        put(tree, key, value)
    # Hydra fills an empty mapping with a plus only.
    return [*groups, *("+" * (before.get(key) == {}) + setting(key, value) for key, value in kept.items())], tree


def arguments_of(settings: Mapping[str, Any]) -> tuple[list[str], str]:
    """The arguments of `dapo-lit train`, and why it would refuse them."""
    arguments, run = run_of(settings)
    return arguments, _fault(run)


def _fault(run: Mapping[str, Any]) -> str:
    from dapo_lit.config import parse

    try:
        parse(run)
    except ConfigError as error:
        return str(error)
    return ""


def lines(system: str, found: Conversion, arguments: Sequence[str], fault: str) -> Iterator[str]:
    """What is printed: the command, and four lists."""
    yield from in_lines("dapo-lit train", arguments)
    wanted = [key for key, word in WANTED.items() if found.settings.get(key) == word]
    by_hand = {key: f"the script does not say it; write it for {WANTED[key]}" for key in wanted}
    open_texts = [key for key, value in found.settings.items() if isinstance(value, str) and "$" in value]
    by_hand |= dict.fromkeys(open_texts, "has variables that the script does not set") | found.by_hand
    yield from _list("Set these by hand:", by_hand)
    yield from _list("Carried over with another meaning:", found.notes)
    yield from _list("No counterpart here:", found.without)
    if found.unknown:
        yield f"\nNot in the table of {system}'s keys, and left out:"
        # A whole config of verl's has hundreds.
        for keys in _grouped((key.split(".")[0], key) for key in found.unknown):
            yield f"  {', '.join(keys)}"
    if fault:
        yield f"\nThis command would be refused as it is: {fault}"


def _list(title: str, entries: Mapping[str, str]) -> Iterator[str]:
    if not entries:
        return
    yield f"\n{title}"
    # The same said of several keys is said once.
    for keys in _grouped((words, key) for key, words in entries.items()):
        yield f"  {', '.join(keys)}: {entries[keys[0]]}"


def _grouped(pairs: Iterable[tuple[str, str]]) -> Iterable[list[str]]:
    """The second of each pair, with those that have the same first, in the order in which they come."""
    found: dict[str, list[str]] = {}
    for first, second in pairs:
        found.setdefault(first, []).append(second)
    return found.values()


@on_screen()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = CommandParser(prog="dapo-lit convert", description=__doc__)
    parser.add_argument("script", nargs="+", help="a file, or a command line as it is")
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    # Its flags are the script's.
    words = given if given and given[0] not in ("--help", "-h") and not given[0].startswith("-") else None
    script = words or parser.parse_args(given).script
    try:
        system, found = conversion(script)
        written, run = run_of(found.settings)
    except UserError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    fault = _fault(run)
    print("\n".join(lines(system, found, written, fault)))
    if not fault:
        print("\n".join(ablation(found.settings, run)))
    return 2 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
