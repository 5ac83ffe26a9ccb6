"""Units after a number: which words are units, and which spell the same one."""

import math
import re
from fractions import Fraction
from itertools import takewhile

from math_answers.number_words import MULTIPLES, NUMBER_WORDS
from math_answers.tokens import Token, words
from math_answers.vocabulary import FUNCTIONS, GREEK, WORDS

_SYNONYMS = {
    "m": "meter meters metre metres m",
    "cm": "cm centimeter centimeters centimetre centimetres cms",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "km": "km kms kilometer kilometers kilometre kilometres",
    "in": "inch inches in",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mile miles mi",
    "g": "g gram grams gm gms",
    "kg": "kg kgs kilogram kilograms",
    "lb": "lb lbs",
    "pound": "pound pounds",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "l": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "mi/h": "mph",
    "km/h": "kmh kph",
    "dollar": "dollar dollars usd buck bucks",
    "cent": "cent cents",
    "euro": "euro euros eur",
    "gbp": "gbp sterling",
    "inr": "inr rupee rupees rs",
    "yen": "yen jpy",
    "yuan": "yuan rmb cny renminbi",
    "won": "won krw",
    "ruble": "ruble rubles rouble roubles rub",
    "peso": "peso pesos",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "unit": "unit units",
    "percent": "percent percentage pct",
    "c": "celsius centigrade",
    "f": "fahrenheit",
    "oz": "oz ounce ounces",
    "gal": "gal gallon gallons",
    "mg": "mg milligram milligrams",
}
_MEANINGS = {
    "pound": frozenset(("lb", "gbp")),
    "yen or yuan": frozenset(("yen", "yuan")),
    "degree": frozenset(("degree", "c", "f")),
}
"""Units whose spelling leaves open which unit it is: a pound is money or a weight."""
_CANONICAL = {spelling: unit for unit, spellings in _SYNONYMS.items() for spelling in spellings.split()}
_ABBREVIATIONS = words(
    """
    cm mm km kg lb lbs ft yd mi hr hrs min mins sec secs mph kph kmh ml gm deg rad pct yuan usd oz gal qt mg kw kwh hz
    kj mL kWh kW Hz kJ sq cu st nd rd th old per USD EUR GBP INR CAD AUD
    """
)
"""May follow a number without `\\text` or a space; single letters (`10m`, `5s`) may not, they are variables there."""
_UPRIGHT = frozenset("mgsLlhNJWAVKCF")
r"""Letters that are units if they are upright and follow a number: `5\,\mathrm{m}`."""
PERCENT = words("percent percentage pct")
_NO_UNIT = words(
    """
    or and not if when where but is are was to than less more least most about otherwise else modulo mod approximately
    squared cubed factorial over minus plus divided choose point root sum product negative positive only no none nor
    unless except for with wrong incorrect false impossible maybe perhaps possibly never cannot
    below beneath above under doubled tripled quadrupled halved negated inverse reciprocal
    """
)
"""Words after a number that are not a unit: `5 or more`, `5 squared`."""
_UNIT_TEXT = re.compile(r"\(?[A-Za-z][A-Za-z .\-/]*\)?|\s*")
_SHORT = words("a an at in of on per the by my his her its our them all each")
"""Words of fewer than four letters inside a unit: `apples in the box`."""
_IN_ALL = re.compile(r"\b(?:in (?:total|all)|altogether|overall|left|remaining|each|total)\b")
"""Says nothing about the unit: `72 apples in total`."""


def unit_length(tokens: list[Token]) -> int:
    """The number of tokens at the end of `tokens` that are a unit: `cm^2`, `apples in total`, `(apples)`."""
    start = _phrase_start(tokens)
    if start == len(tokens):
        start = _bracket_start(tokens)
    while start > 1:
        token, before = tokens[start - 1], tokens[start - 2]
        if is_unit(token):
            start -= 1
        elif before.text == "^" and token.text in ("2", "3") and start > 3 and is_unit(tokens[start - 3]):
            start -= 3
        elif _braced_power(tokens[:start]):
            start -= 5
        elif start == len(tokens) and (speed := _speed(tokens)):
            start -= speed
        elif _temperature(tokens[:start]) or (token.text == "/" and start < len(tokens) and is_unit(before)):
            start -= 1
        elif token.text == "'" and before.kind == "number" and start == len(tokens):
            break
        else:
            break
    return len(tokens) - start


def _phrase_start(tokens: list[Token]) -> int:
    """Where a unit of several words starts, the number of tokens without one: `72 apples in the box`."""
    start = len(tokens)
    while start > 1 and _is_unit_word(tokens[start - 1]):
        start -= 1
    while start < len(tokens) and not is_unit(tokens[start]):
        start += 1
    return start if len(tokens) - start > 1 else len(tokens)


def _bracket_start(tokens: list[Token]) -> int:
    """Where a unit in brackets starts, the number of tokens without one: `9 (apples)`, `9 (in cm^2)`."""
    if len(tokens) < 4 or tokens[-1].text not in (")", "]"):
        return len(tokens)
    opening = {")": "(", "]": "["}[tokens[-1].text]
    start = max((index for index, token in enumerate(tokens) if token.text == opening), default=0)
    inside = tokens[start + 1 : -1]
    if len(inside) > 2 and inside[-2].text == "^" and inside[-1].text in ("2", "3"):
        inside = inside[:-2]
    named = [token for token in inside if token.text != "/" and token.text.lower() not in _SHORT]
    unit = (
        start > 0 and named and all(_is_unit_word(token) or _is_abbreviation(token, start, tokens) for token in inside)
    )
    return start if unit else len(tokens)


def _is_abbreviation(token: Token, start: int, tokens: list[Token]) -> bool:
    """`/`, or a unit of one or two letters: `9 (m)`. Without a space `9(m)` is a product."""
    known = token.text in _ABBREVIATIONS or (token.text in _CANONICAL and tokens[start].spaced)
    return token.text == "/" or (token.kind == "name" and known)


def _is_unit_word(token: Token) -> bool:
    """A word that may stand in a unit of several words."""
    word = token.text.lower()
    if token.kind == "text":
        return is_unit(token)
    if token.kind != "name" or word in _NO_UNIT or word in PERCENT or token.text in FUNCTIONS or token.text in WORDS:
        return False
    return len(word) > 2 and token.text not in GREEK if word not in _SHORT else True


_SPEED = re.compile(r"(?:m / s|km / h|km / s|m / s \^ 2|m / s \^ \{ 2 \})")


def _speed(tokens: list[Token]) -> int:
    """Number of tokens of a final `10 m/s` or `9.8 m/s^2` that are the unit; elsewhere these letters are variables."""
    for length in (3, 5, 7):
        unit = tokens[-length:]
        after_number = len(tokens) > length and unit[0].spaced and tokens[-length - 1].kind == "number"
        if after_number and _SPEED.fullmatch(" ".join(token.text for token in unit)):
            return length
    return 0


def _temperature(tokens: list[Token]) -> bool:
    r"""The letter of `20^\circ C` or `20^{\circ} F`."""
    return tokens[-1].text in ("C", "F") and "circ" in [token.text for token in tokens[-3:-1]]


def _braced_power(tokens: list[Token]) -> bool:
    if len(tokens) < 6 or not is_unit(tokens[-5]):
        return False
    texts = [token.text for token in tokens[-4:]]
    return texts[0] == "^" and texts[1] == "{" and texts[2] in ("2", "3") and texts[3] == "}"


def is_unit(token: Token) -> bool:
    """True if a token after a number is a unit: text, an abbreviation, or a spaced word of four letters or more."""
    if token.kind == "text":
        return _UNIT_TEXT.fullmatch(token.text.strip()) is not None and not _NO_UNIT & set(token.text.lower().split())
    if token.text.lower() in _NO_UNIT:
        return False
    if token.upright and token.text in _UPRIGHT:
        return True
    if token.kind != "name" or token.text in FUNCTIONS or token.text in GREEK or token.text in WORDS:
        return False
    if token.text in _ABBREVIATIONS or token.text in PERCENT:
        return True
    return (token.text in _CANONICAL and len(token.text) > 2) or (token.spaced and len(token.text) > 3)


def unit_name(tokens: list[Token]) -> str:
    r"""One spelling of a unit: `square centimeters`, `cm^2` and `\text{cm}^2` are `cm2`."""
    text = " ".join(token.text for token in tokens if token.text not in "{}^").lower()
    text = re.sub(r"^\W*in\s+(?=[a-z])", "", _IN_ALL.sub("", text))  # (in dollars)
    text = re.sub(r"\bper\b", "/", text)
    text = re.sub(r"\b(?:sq|square|cu|cubic)\.?\s+([a-z]+)", _squared, text)
    parts = [
        _CANONICAL.get(word, word.removesuffix("s") if len(word) > 3 else word)
        for word in re.findall(r"[a-z]+|[0-9/]", text)
        if word not in MULTIPLES
    ]
    if len(parts) > 1 and parts[0] == "degree":
        parts = parts[1:]  # degrees Celsius
    return "".join(parts)


def multiple(tokens: list[Token]) -> Fraction | None:
    """The factor of a unit such as `million`, `hundred thousand`, `tenths` or `thousand dollars`, 1 for `dollars`.

    None for words that say another number than the factor before them: `twenty-fifths`, `hundred thousandths` (of which
    two are read), `degrees below zero`, `times two`.
    """
    words = re.findall("[a-z]+", " ".join(token.text for token in tokens).lower())
    factors = [MULTIPLES[word] for word in takewhile(MULTIPLES.__contains__, words)]
    rest = words[len(factors) :]
    another = any(word in MULTIPLES or {word, word.removesuffix("s")} & NUMBER_WORDS for word in rest)
    if another or "times" in rest[:-1] or (len(factors) > 1 and min(factors) < 1):
        return None
    return math.prod(factors, start=Fraction(1))


def units_agree(a: str, b: str) -> bool:
    """True unless they are two units: `USD` and a bare number agree, `USD` and `EUR`, or `cm` and `percent`, do not.

    Nothing is converted: `100 cm` is not `1 m`. The exception are degrees and radians, which `compare.py` converts.

    >>> units_agree("cm", ""), units_agree("pound", "gbp"), units_agree("lb", "gbp"), units_agree("cent", "dollar")
    (True, True, False, False)
    """
    if not a or not b or a == b or {a, b} == {"degree", "radian"}:
        return True
    return bool(_MEANINGS.get(a, frozenset((a,))) & _MEANINGS.get(b, frozenset((b,))))


def _squared(found: re.Match[str]) -> str:
    return f"{found[1]} {3 if found[0].startswith('cu') else 2}"
