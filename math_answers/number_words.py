"""Numbers in words: cardinals, ordinals, and the multiples that follow a number."""

import re
from fractions import Fraction

_POWERS_OF_TEN = {
    **{"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12},
    **{"quadrillion": 15, "quintillion": 18, "sextillion": 21, "septillion": 24, "octillion": 27, "nonillion": 30},
}
_CARDINALS = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9},
    **{"ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16},
    **{"seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50},
    **{"sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90},
    **{name: 10**power for name, power in _POWERS_OF_TEN.items()},
}
_IRREGULAR = {"two": "half", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
_ORDINALS = {
    _IRREGULAR.get(name, re.sub("y$", "ie", name) + "th"): value for name, value in _CARDINALS.items() if value > 1
}
"""With `half` for two: a second is a time."""
MULTIPLES = {
    **{plural: Fraction(10**power) for name, power in _POWERS_OF_TEN.items() for plural in (name, name + "s")},
    **{"dozen": Fraction(12), "dozens": Fraction(12)},
    **{f"{name}s": Fraction(1, value) for name, value in _ORDINALS.items()},
    "halves": Fraction(1, 2),
}
"""Words that multiply the number before them: `million`, `hundredths`."""
NUMBER_WORDS = frozenset((*_CARDINALS, *_ORDINALS, "first", "quarter", "score", "gross"))
