"""Reflection: checking, backtracking and rethinking in a response (DAPO section 4.4), measured by patterns.

The paper shows two passages that appear during training and gives no rate. Here a response reflects if one of the
patterns below occurs in it. Keywords are only a proxy: a policy can verify its work without them, or use them without
verifying anything.
"""

import re

_PATTERNS = (
    r"\b(?:however|but|no|hmm|oh|so),? wait\b|\bwait,|\bwait a (?:moment|minute|second)\b",
    r"\b(?:rethink|reconsider(?:ed|ing)?|re-?examin(?:e|ed|ing)|re-?evaluat(?:e|ed|ing))\b",
    r"\b(?:double|re)-?check\b|\b(?:let's|let us|let me|i will|i'll|we should) (?:verify|check)\b",
    r"\b(?:i|we) (?:have )?(?:made|must have made) an? (?:mistake|error)\b"
    r"|\b(?:that|this) (?:is|was|can't be|cannot be) (?:wrong|incorrect)\b",
    r"\b(?:let's|let us|let me) (?:go back|start over|try again)\b|\b(?:another|a different) approach\b",
)
WORDS = re.compile("|".join(_PATTERNS).replace(" ", r"\s+"), re.IGNORECASE)
"""In any case, with any white space between two words."""
MARK = re.compile(r"\?")
"""In the generated tasks with a vocabulary of characters a question mark starts a check:
`7+4=11;11+9=21;?7+4=11;11+9=20;#20`."""


def reflects(text: str, pattern: re.Pattern[str] = WORDS) -> bool:
    """True if the pattern occurs in a response.

    >>> reflects("However,\\nwait a moment, let's rethink"), reflects("7+4=11;?7+4=11;#11", MARK)
    (True, True)
    """
    return pattern.search(text.replace("\u2019", "'")) is not None  # typographic apostrophes
