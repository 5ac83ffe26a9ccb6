"""Choices of config groups on the command line: `task=gsm8k`, `+experiment=dapo`, `+study=table1`."""

from collections.abc import Sequence

import yaml

from dapo_lit.config.shipped import config_folder, overridden
from dapo_lit.errors import suggestion

WITH_PLUS = ("experiment", "regime", "study", "policy/lora", "callbacks")
"""Groups without a default choice; Hydra wants a plus before them."""
LISTS = ("experiment", "callbacks")
"""Groups of which several may be chosen for one run."""


def group_fault(group: str, choices: Sequence[object], added: bool, sweeps: bool) -> str | None:
    """One line on what is wrong with choosing `choices` in a group of `conf/`; None if nothing is."""
    known = known_choices(group)
    if len(choices) > 1 and not sweeps and group not in LISTS:
        names = ",".join(map(str, choices))
        return f"{group}=[{names}]: one {group} at a time; {group}={names} with -m runs one after the other"
    for choice in choices:
        if isinstance(choice, str) and choice.removesuffix(".yaml") not in known and "/" not in choice:
            form = f"{'+' if group in WITH_PLUS else ''}{group}={{}}"
            return f"{group}={choice}: there is no such {group}; {suggestion(choice, known, form)}"
    if group in WITH_PLUS and not added:
        chosen = ",".join(map(str, choices))
        return f"{group}={chosen}: write +{group}={chosen}, with a plus; the defaults choose no {group}"
    return None


def known_choices(group: str) -> list[str]:
    """The files of a group in `conf/`, without their ending."""
    return sorted(file.stem for file in (config_folder() / group).glob("*.yaml"))


def regime_fault(arguments: Sequence[str]) -> str | None:
    """One line if an experiment on the command line replaces the task of the regime on it; None otherwise."""
    given = dict(argument.lstrip("+").partition("=")[::2] for argument in arguments)
    regime, experiment = given.get("regime", ""), given.get("experiment", "")
    if "task" not in overridden("regime", regime) or "task" not in overridden("experiment", experiment):
        return None
    return (
        f"+experiment={experiment} brings a task of its own, which would replace that of regime={regime}; leave one out"
    )


def brings_regime(arguments: Sequence[str]) -> bool:
    """Whether the experiment on a command line has a regime of its own, which `regime=NAME` then replaces."""
    chosen = [a.removeprefix("+experiment=") for a in arguments if a.startswith("+experiment=")]
    files = [config_folder() / "experiment" / f"{name}.yaml" for name in chosen]
    contents = [yaml.safe_load(file.read_text()) for file in files if file.is_file()]
    return any("/regime" in entry for content in contents for entry in content.get("defaults", ()))
