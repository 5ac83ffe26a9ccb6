"""Numbers in an expression: decimals, powers of ten, mixed numbers."""

from fractions import Fraction

from math_answers.expression import Number
from math_answers.quantity import MAX_DIGITS, MAX_EXPONENT, printed_error
from math_answers.reader import Reader
from math_answers.tokens import ParseError


def number(text: str) -> Number:
    if len(text) > MAX_DIGITS:
        raise ParseError("too many digits")
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise ParseError("too large an exponent")
    return Number(Fraction(text), printed_error(mantissa))


def mixed_number(reader: Reader, whole: Number) -> Number:
    r"""`1 1/2` and `1\frac{1}{2}` are sums; any other fraction after a number is a factor."""
    if whole.value.denominator != 1:
        return whole
    ahead = reader.tokens[reader.index : reader.index + 7]
    kinds = [token.kind for token in ahead]
    texts = [token.text for token in ahead]
    if kinds[:3] == ["number", "sign", "number"] and texts[1] == "/" and ahead[0].spaced:
        part = Fraction(1, 1) if "." in texts[0] + texts[2] else _proper(texts[0], texts[2])
        length = 3
    elif (
        texts[:2] == ["frac", "{"]
        and texts[3:5] == ["}", "{"]
        and texts[6:7] == ["}"]
        and kinds[2:6:3] == ["number"] * 2
    ):
        part = _proper(texts[2], texts[5])
        length = 7
    elif texts[:1] == ["frac"] and kinds[:2] == ["command", "number"] and len(texts[1]) == 2:
        part = _proper(*texts[1])
        length = 2
    else:
        return whole
    if part >= 1:
        return whole
    reader.index += length
    return Number(whole.value + part)


def _proper(numerator: str, denominator: str) -> Fraction:
    """The fraction of two digit strings, 1 (so: not proper) if they are none."""
    if not (numerator.isdigit() and denominator.isdigit()) or len(numerator + denominator) > 40 or not int(denominator):
        return Fraction(1)
    return Fraction(int(numerator), int(denominator))
