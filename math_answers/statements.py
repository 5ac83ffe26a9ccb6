r"""A sentence that states one formula: `The value is $204$.`, `$204$, as required`, `So we get $204$ as the answer`.

A sentence with two formulas, a number outside, or words that deny, compare or offer another answer states none. Nor
does one with other words next to the formula: `twice $102$`, `$204$ less one`.
"""

import re

from math_answers.equations import is_noun_phrase
from math_answers.splitting import FORMULA

_BEFORE = re.compile(
    r"""(?: (?P<name>[^0-9=]*?)\b(?:is|are|was|be|equals|equal\ to|gets?|obtain|have|find|found|gives?|yields?)
            (?:\s+(?:exactly|simply|just|therefore|thus|then|hence|equal\ to))?\s*[:,]?
          | (?:so|thus|hence|therefore|then)?\s*[:,]? )\s*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_AFTER = re.compile(
    r"""\s*(?: ,?\s*(?:since|because|as\ (?:required|desired|claimed|expected|(?:the|our|my)\b))[^0-9=]*
             | ,?\s*\(?\s*(?:which\ is\ )?(?:already\ )?in\ (?:its\ )?(?:lowest|simplest|simplified|reduced)[^0-9=]*
             | \s+is\ (?:the|our|my)\ (?:\w+\ )?(?:answer|result|value|solution)
             )?\s*[.!]?\s*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_CONCLUSION = re.compile(r"\b(?:conclude|find|see|get|have|obtain|follows|means|shows) that\b", re.IGNORECASE)
_ANOTHER = re.compile(r"\b(?:or|but|if|that|instead|rather|whereas|while|suppose|assume)\b", re.IGNORECASE)
"""`that` unless it follows a conclusion: of `I doubt that` nothing is stated."""


def stated_formula(text: str) -> str | None:
    """The formula with its delimiters, None if the text is no such sentence or nothing else than the formula."""
    if "$" not in text and "\\" not in text:
        return None  # most answers: no formula is delimited
    formulas = list(FORMULA.finditer(text))
    if len(formulas) != 1:
        return None
    before, after = text[: formulas[0].start()], text[formulas[0].end() :]
    if not (re.search("[A-Za-z]", before + after) and _BEFORE.fullmatch(before) and _AFTER.fullmatch(after)):
        return None
    around = [re.sub(r"([.?!;])", r" \1 ", side.strip(" .!")) for side in (_CONCLUSION.sub("", before), after)]
    if any(_ANOTHER.search(side) or not is_noun_phrase(side) for side in around):
        return None
    return formulas[0][0]
