"""What a config key means for "the same experiment". Every field is tagged once, where it is declared:

    threads: Annotated[PositiveInt, EXECUTION]

A tag on a section holds for every key below it that has no tag of its own; a key without any tag is science. The config
hash, the check before a resume and the guard of a study read the tags through identity.py.
"""

from enum import StrEnum


class Kind(StrEnum):
    SCIENCE = "science"
    """Decides what is learned or how it is measured."""
    EXECUTION = "execution"
    """Decides where and how fast the run computes; results are equal up to rounding."""
    HORIZON = "horizon"
    """Decides where the run ends: part of the hash, and may grow when the run is resumed."""
    BOOKKEEPING = "bookkeeping"
    """Names, places, logs and checkpoints."""


SCIENCE, EXECUTION, HORIZON, BOOKKEEPING = Kind
