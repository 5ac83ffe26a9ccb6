"""Choices of config groups on the command line: `task=gsm8k`, `+experiment=dapo`, `+study=table1`."""

from collections.abc import Sequence

import yaml

from dapo_lit.config.shipped import config_folder
from dapo_lit.errors import suggestion

WITH_PLUS = ("experiment", "regime", "study", "policy/lora", "callbacks")
"""Groups without a default choice; Hydra wants a plus before them."""


def group_fault(group: str, choices: Sequence[object], added: bool) -> str | None:
    """One line on what is wrong with choosing `choices` in a group of `conf/`; None if nothing is."""
    known = known_choices(group)
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


def brings_regime(arguments: Sequence[str]) -> bool:
    """Whether the experiment on a command line has a regime of its own, which `regime=NAME` then replaces."""
    chosen = [a.removeprefix("+experiment=") for a in arguments if a.startswith("+experiment=")]
    files = [config_folder() / "experiment" / f"{name}.yaml" for name in chosen]
    contents = [yaml.safe_load(file.read_text()) for file in files if file.is_file()]
    return any("/regime" in entry for content in contents for entry in content.get("defaults", ()))
