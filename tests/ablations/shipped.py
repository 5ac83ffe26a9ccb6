"""The studies of conf/study/ as designs."""

from pathlib import Path

import yaml

from ablations.designs import ARMS, Design, read_arms

PAIR = "pair"
"""A study of two arms that is not shipped."""
_FILES = (Path(__file__).parents[2] / "conf/study").glob("*.yaml")
_STUDIES = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["study"] for file in _FILES}
DESIGNS = tuple(sorted(name for name, study in _STUDIES.items() if study.get("arms")))


def design(name: str) -> Design:
    """A shipped study, or the arms of one word."""
    words = ["dapo-clip_higher", "dapo"] if name == PAIR else [name] if name in ARMS else _STUDIES[name]["arms"]
    arms = read_arms(words)
    return Design(name, _STUDIES[name]["reference"] if name in _STUDIES else arms[0].name, arms)
