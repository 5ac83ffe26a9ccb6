"""The runs of a multirun without a study, before the first starts: each has a config, and a folder of its own."""

import itertools
import re
from collections.abc import Sequence
from contextlib import suppress

from hydra.core.override_parser.types import Override

from ablations.designs import arm_name
from dapo_lit.cli.config_tree import composed_tree, config_of
from dapo_lit.cli.overrides import LISTED_SWEEPS, choices, is_inspection, of_hydra, parsed_overrides
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.shipped import switches_of


def arm_of(config: Config) -> str:
    """The arm's name: the study's, or that of the switches."""
    if config.study and config.own_study.arm:
        return config.own_study.arm
    family = config.algorithm.family
    on = config.algorithm.techniques.model_dump() | dict.fromkeys(config.algorithm.own_techniques, True)
    return arm_name(on, family, switches_of(family))


def check_jobs(arguments: Sequence[str]) -> None:
    """Raises ConfigError if a job's config is refused, or if two jobs would write one folder, where the second would
    move the first aside."""
    given = [override for override in parsed_overrides(arguments) if not of_hydra(override)]
    swept = [override for override in given if override.is_sweep_override()]
    if is_inspection(arguments) or not {"-m", "--multirun"} & {*arguments} or not swept:
        return
    plain = [str(override.input_line) for override in given if not override.is_sweep_override()]
    written: dict[str, tuple[str, ...]] = {}
    for job in itertools.product(*map(_settings, swept)):
        words = " ".join(job)
        try:
            config = config_of(composed_tree([*plain, *job]), Config)
        except ConfigError as error:
            raise ConfigError(f"job {words}: {error}") from None
        folder = str(config.folder(arm_of(config)))
        if folder in written:
            first = " ".join(written[folder])
            raise ConfigError(
                f"-m: {first} and {words} would both write {folder}, which is named by study_name, switches and seed; "
                f"{_apart(plain, written[folder], job, config.study_name)}"
            )
        written[folder] = job


def _apart(plain: Sequence[str], one: Sequence[str], other: Sequence[str], name: str) -> str:
    """What gives two jobs folders of their own: a name with a value that differs, where that composes, else a name in a
    command each."""
    differing = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    is_named = any(setting.startswith("study_name=") for setting in one)
    for setting, _ in () if is_named else reversed(differing):
        named = f"study_name={name}_${{{setting.partition('=')[0].lstrip('+')}}}"
        folders = []
        for job in (one, other):
            with suppress(ConfigError):
                config = config_of(composed_tree([*plain, *job, named]), Config)
                folders.append(config.study_name)
        if len({*folders}) == 2 and all(re.fullmatch(r"[\w.-]+", folder) for folder in folders):
            return f"name them apart, such as '{named}'"
    (first, second), *_ = differing
    return f"give each a command of its own, such as {first} 'study_name={name}_1' and {second} 'study_name={name}_2'"


def _settings(swept: Override) -> list[str]:
    """A sweep as one override for each of its values."""
    is_listed = swept.value_type in LISTED_SWEEPS
    values = swept.sweep_string_iterator() if is_listed else map(str, choices(swept))
    return [f"{swept.get_key_element()}={value}" for value in values]
