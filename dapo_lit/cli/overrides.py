"""The command line of the commands with a config: Hydra's flags and overrides, checked before Hydra sees them."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, ValueType
from hydra.errors import HydraException

from ablations.command_text import setting
from ablations.errors import one_line
from dapo_lit.config import Config, ConfigError, Section, known_keys, unknown_key
from dapo_lit.config.sections import SECRET
from dapo_lit.config.shipped import (
    SEARCHED,
    brings_regime,
    group_fault,
    group_file,
    is_group,
    known_choices,
    own_folders,
    regime_fault,
)

FLAGS_WITH_VALUE = (
    "--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--info",
    "-i",
)  # fmt: skip
"""Hydra's flags whose value is the next argument; not --experimental-rerun, which would run the code of a pickle."""
OWN_FOLDER = ("--config-dir", "-cd")
FLAGS = (
    *FLAGS_WITH_VALUE, "--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m",
    "--shell-completion", "-sc",
)  # fmt: skip
"""All flags of Hydra's."""
LIKE_A_NUMBER = re.compile(r"(?<![^,(\[])[+-]?\.?\d[\w.+-]*(?![^,)\]])")
"""A name that begins as a number does, among the choices `a`, `a,b` or `[a,b]`."""
LISTED_SWEEPS = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP)
MODES = (("--cfg", "-c"), ("--info", "-i"), ("--run", "-r"), ("--multirun", "-m"), ("--shell-completion", "-sc"))
"""Flags of which Hydra takes at most one."""
LOOKS_ONLY = ("--cfg", "-c", "--help", "-h", "--hydra-help", "--info", "-i", "--shell-completion", "-sc")
"""Flags with which Hydra runs nothing."""


def is_inspection(arguments: Iterable[str]) -> bool:
    """True if Hydra will print something and run nothing."""
    return any(argument.split("=")[0] in LOOKS_ONLY for argument in arguments)


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The command line with Hydra's flags first, because Hydra takes none between two overrides.

    >>> flags_first(["+experiment=dapo", "-m", "seed=1,2", "--config-dir", "mine"])
    ['-m', '--config-dir', 'mine', '+experiment=dapo', 'seed=1,2']
    """
    flags: list[str] = []
    others: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_flag = argument.startswith("-")
        # argparse would take `--lr` for an abbreviation of a flag that exists.
        if is_flag and argument.split("=")[0] not in FLAGS:
            raise ConfigError(f"{argument}: no such flag; settings are key=value, --help lists them")
        (flags if is_flag or before in FLAGS_WITH_VALUE else others).append(argument)
    modes = {names: flag.partition("=")[0] for flag in flags for names in MODES if flag.partition("=")[0] in names}
    if len(modes) > 1:
        raise ConfigError(
            f"{' and '.join(modes.values())}: give one of them; a multirun has no config of its own, only its runs have"
        )
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(message)

    parser.error = refuse  # argparse would print its usage too, and exit
    parser.parse_args([*flags, *others])
    return [*flags, *others]


def folders_as_setting(arguments: Sequence[str]) -> list[str]:
    """The command line with the flag `--config-dir` as the setting that the cells of a study and the jobs of a multirun
    are composed with too.

    Raises ConfigError: there is no such folder, or both are given.
    """
    kept: list[str] = []
    named: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag, given, folder = argument.partition("=")
        if before in OWN_FOLDER:
            named.append(argument)
        elif flag in OWN_FOLDER and given:
            named.append(folder)
        elif flag not in OWN_FOLDER:
            kept.append(argument)
    if not named:
        return kept
    if own_folders(kept) or len(named) > 1:
        raise ConfigError(f"--config-dir={named[-1]}: several folders of configs are {SEARCHED}=[file://A,file://B]")
    if not Path(named[0]).is_dir():
        raise ConfigError(f"--config-dir={named[0]}: no such folder")
    return [*kept, setting(SEARCHED, [f"file://{Path(named[0]).absolute()}"])]


def study_last(arguments: Iterable[str]) -> list[str]:
    """The command line with the choice of a study behind all other choices, whose settings it overrides.

    >>> study_last(["+study=cheaper_sampling", "+regime=joint", "seed=64"])
    ['+regime=joint', 'seed=64', '+study=cheaper_sampling']
    """
    return sorted(arguments, key=lambda argument: argument.lstrip("+").startswith("study="))  # a stable sort


def written_out(arguments: Sequence[str], positional: str | None) -> list[str]:
    """The command line with a positional argument as key=value.

    >>> written_out(["runs/single/dapo/seed_0", "output=exported"], "ckpt")
    ['ckpt=runs/single/dapo/seed_0', 'output=exported']
    >>> len(written_out(["study.arms=[" + "dapo," * 100 + "naive_grpo]"], None))
    1
    """
    written: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        # The value of a flag is no path of a run.
        is_place = before not in FLAGS_WITH_VALUE and not argument.startswith(("-", "~"))
        # Path.exists() raises for an argument that is too long for a name, such as a list of arms.
        if not is_place or ("=" in argument and not os.path.exists(argument)):
            written.append(argument)
        elif positional is None or any(a.startswith(f"{positional}=") for a in [*arguments, *written]):
            raise ConfigError(f"{argument}: not key=value; --help lists the keys")
        else:
            written.append(setting(positional, argument))
    return written


def choices_as_text(arguments: Sequence[str]) -> list[str]:
    """The command line with quotes around choices of groups that begin as a number does: Hydra would refuse the number.

    >>> choices_as_text(["+task=10", "task=parity,08,9", "task=range(1,3)", "+experiment=[a,1e3]", "seed=10"])
    ["+task='10'", "task=parity,'08','9'", "task='1','2'", "+experiment=[a,'1e3']", 'seed=10']
    """
    own = own_folders(arguments)
    return [_choice_as_text(argument) if _is_choice(argument, own) else argument for argument in arguments]


def _is_choice(argument: str, own: Iterable[Path]) -> bool:
    key, given, _ = argument.lstrip("+").partition("=")
    return bool(given) and is_group(key.partition("@")[0], own)


def _choice_as_text(argument: str) -> str:
    key, _, names = argument.partition("=")
    override = parsed(argument)
    if override.value_type is ValueType.RANGE_SWEEP:
        names = ",".join(override.sweep_string_iterator())
    return f"{key}={LIKE_A_NUMBER.sub(_quoted, names)}"


def _quoted(name: re.Match[str]) -> str:
    return f"'{name[0]}'"


def quote_arms(argument: str) -> str:
    """Quotes each name in `study.arm=dapo@clip.high=0.5,dapo`, because Hydra wants quotes around a value with `=`."""
    names = argument.removeprefix("study.arm=")
    if names == argument or "'" in names or '"' in names:
        return argument
    return "study.arm=" + ",".join(f"'{name}'" for name in names.split(","))


@cache  # a command reads each of its overrides several times, and the grammar takes milliseconds
def parsed(argument: str) -> Override:
    """One override as Hydra reads it; not to be changed."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException as error:
        # The first line only: the others draw a pointer into a text that the user did not type.
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{argument}: not readable ({reason}); a text with special characters "
            "wants double quotes inside the single ones of the shell: 'task.columns={problem: \"Question (text)\"}'"
        ) from None


def parsed_overrides(arguments: Iterable[str]) -> list[Override]:
    """The overrides on a command line, `~regime` too, without its flags."""
    return [parsed(a) for a in arguments if a.startswith("~") or ("=" in a and not a.startswith("-"))]


def choices(override: Override) -> list[object]:
    """The choices of an override in a group: `a`, each of a list `[a,b]`, or each of a sweep `a,b` or `glob(a*)`."""
    value = override.value()
    if isinstance(value, Glob):
        return [*value.filter(known_choices(override.key_or_group))]
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return [choice for each in values for choice in (each if isinstance(each, list) else [each])]


def of_hydra(override: Override) -> bool:
    """True for a setting of Hydra's own, which takes no part in a config."""
    key = override.key_or_group
    return key.split("/")[0].split(".")[0] == "hydra" and key != SEARCHED


def sweep_fault(override: Override) -> str | None:
    """One line on a sweep that has no value, or one value twice; None for other overrides."""
    if not override.is_sweep_override() or override.value_type not in LISTED_SWEEPS:
        return None
    values = [*override.sweep_string_iterator()]
    twice = next((value for value in values if values.count(value) > 1), None)
    if not values:
        return f"{override.input_line}: has no value, so nothing would run; a range is written 'seed=range(0,6)'"
    return f"{override.input_line}: {twice} is named twice" if twice else None


def starts_study(arguments: Sequence[str]) -> bool:
    """True for a command line that runs cells of a study; what a study needs is loaded for such ones only.

    Raises ConfigError: one of several chosen experiments is a study.
    """
    given, own = parsed_overrides(arguments), own_folders(arguments)
    experiments = [_is_study(override, own) for override in given if override.key_or_group == "experiment"]
    named = any(override.key_or_group == "study" for override in given) or any(experiments)
    return named and not is_inspection(arguments)


def _is_study(chosen: Override, own: Sequence[Path]) -> bool:
    """True if the chosen experiment is a study, such as ablate_clip_higher."""
    names = choices(chosen)
    studies = [name for name in names if "study" in group_file("experiment", str(name), own)]
    if studies and len(names) > 1:
        raise ConfigError(
            f"{chosen.input_line}: {studies[0]} is a study, which takes a command of its own: +experiment={studies[0]}"
        )
    return bool(studies)


WITH_ARGUMENTS = ("logger", "callbacks")
"""Sections with keys that are arguments of other libraries."""
INSTEAD = (
    "export it as a variable of the environment that the library reads, such as WANDB_API_KEY, or as one of your own, "
    "and give '${oc.env:VARIABLE}' here"
)


def secret_of(key: str, value: object) -> str | None:
    """The dotted key of a secret among the arguments of a logger or callback, at `key` or below it; None: there is
    none. Interpolations are not resolved yet."""
    waiting: list[tuple[str, object]] = [(key, value)]
    while waiting:
        key, value = waiting.pop()
        parts = key.split(".")
        if isinstance(value, Mapping):
            waiting += [(f"{key}.{name}", inner) for name, inner in value.items()]
        elif (
            parts[0] in WITH_ARGUMENTS and isinstance(value, str) and "${" not in value and SECRET.fullmatch(parts[-1])
        ):
            return key
    return None


def secret_fault(override: Override) -> str | None:
    """One line on a secret in an override; None for others."""
    if override.is_sweep_override() or not (key := secret_of(override.key_or_group, override.value())):
        return None
    return f"{key}: a secret in a command is shown by the list of processes and kept by the shell; {INSTEAD}"


def check_overrides(arguments: Sequence[str], schema: type[Section] = Config) -> None:
    """Refuses unknown keys and unknown choices of groups, and suggests the nearest known ones."""
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    replaces = "regime" if brings_regime(arguments) else None
    own = own_folders(arguments)
    faults: list[str | None] = [regime_fault(arguments)]
    for override in map(parsed, overrides):
        key = override.key_or_group
        path = key.split(".")
        faults += [sweep_fault(override), secret_fault(override)]
        if is_group(key, own) and path[0].split("/")[0] != "hydra":
            added, sweeps = override.is_add() or key == replaces, override.is_sweep_override()
            faults.append(group_fault(key, choices(override), added, sweeps, own))
            continue
        if path[0].split("/")[0] == "hydra":
            continue
        for depth in range(len(path)):
            siblings = known_keys(path[:depth], schema)
            if siblings is None:
                break
            if path[depth] not in siblings:
                faults.append(unknown_key(path[: depth + 1], schema, path[depth + 1 :]))
                break
    if any(faults):
        raise ConfigError(one_line(filter(None, faults)))
