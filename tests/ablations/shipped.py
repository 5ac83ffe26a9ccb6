"""The studies of conf/studies.yaml as designs."""

from pathlib import Path

import yaml

from ablations.designs import ARMS, Design, read_arms

PAIR = "pair"
"""A study of two arms that is not shipped."""
_ENTRIES = yaml.safe_load((Path(__file__).parents[2] / "conf" / "studies.yaml").read_text(encoding="utf-8"))
_STUDIES = {name: entry["study"] for name, entry in _ENTRIES.items() if name != "shared"}
DESIGNS = tuple(sorted(name for name, study in _STUDIES.items() if study.get("arms")))


def design(name: str) -> Design:
    """A shipped study, or the arms of one word."""
    words = ["dapo-clip_higher", "dapo"] if name == PAIR else [name] if name in ARMS else _STUDIES[name]["arms"]
    arms = read_arms(words)
    return Design(name, _STUDIES[name]["reference"] if name in _STUDIES else arms[0].name, arms)
