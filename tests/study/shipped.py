"""The studies of conf/study as designs."""

import yaml

from dapo_lit.config import config_folder
from dapo_lit.study.designs import ARMS, Design, read_arms

PAIR = "pair"
"""A study of two arms that is not shipped."""
_FILES = {file.stem: yaml.safe_load(file.read_text())["study"] for file in (config_folder() / "study").glob("*.yaml")}
DESIGNS = tuple(sorted(name for name, study in _FILES.items() if study.get("arms")))


def design(name: str) -> Design:
    """A shipped study, or the arms of one word."""
    words = ["dapo-clip_higher", "dapo"] if name == PAIR else [name] if name in ARMS else _FILES[name]["arms"]
    arms = read_arms(words)
    return Design(name, _FILES[name]["reference"] if name in _FILES else arms[0].name, arms)
