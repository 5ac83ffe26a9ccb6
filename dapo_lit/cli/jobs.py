"""The runs of a multirun without a study, before the first starts: each has a config, and a folder of its own."""

import itertools
from collections.abc import Sequence

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
    written: dict[str, str] = {}
    for job in itertools.product(*map(_settings, swept)):
        words = " ".join(job)
        try:
            config = config_of(composed_tree([*plain, *job]), Config)
        except ConfigError as error:
            raise ConfigError(f"job {words}: {error}") from None
        folder = str(config.folder(arm_of(config)))
        if folder in written:
            raise ConfigError(
                f"-m: {written[folder]} and {words} would both write {folder}, which is named by study_name, switches "
                f"and seed; name them apart, such as 'study_name={config.study_name}_${{{swept[-1].key_or_group}}}'"
            )
        written[folder] = words


def _settings(swept: Override) -> list[str]:
    """A sweep as one override for each of its values."""
    is_listed = swept.value_type in LISTED_SWEEPS
    values = swept.sweep_string_iterator() if is_listed else map(str, choices(swept))
    return [f"{swept.get_key_element()}={value}" for value in values]
