"""The switches that an algorithm's own file sets: what a run of it is named against."""

from functools import cache

import yaml

from dapo_lit.config.folder import config_folder


@cache
def switches_of(family: str) -> dict[str, bool]:
    """`techniques` of conf/algorithm/<family>.yaml, those of the file it begins from included; {} without a file."""
    file = config_folder() / "algorithm" / f"{family}.yaml"
    if not file.is_file():
        return {}
    tree = yaml.safe_load(file.read_text())
    begun = [name for name in tree.get("defaults", []) if isinstance(name, str) and name != "_self_"]
    switches: dict[str, bool] = {}
    for name in begun:
        switches |= switches_of(name)
    return switches | tree.get("techniques", {})
