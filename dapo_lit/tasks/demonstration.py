"""One response to a prompt that a base policy is pre-trained on."""

from typing import NamedTuple


class Demonstration(NamedTuple):
    prompt: str
    response: str
    ends: bool
    """False: cut off, no EOS follows."""
