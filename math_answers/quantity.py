r"""Read a number exactly, and say when two numbers are the same answer.

What is read: integers, decimals, fractions (`3/4`, `\frac{3}{4}`), mixed numbers (`1 1/2`), powers of ten (`3.5e-7`,
`3.5 \times 10^{-7}`), thousands separators (`1,234`, `1 234`, `1{,}234`, `1\,234`), one currency sign, one percent
sign.
What is not: words, units, roots, sums. Nothing is rounded.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from math_answers.marks import unmarked

MAX_DIGITS = 1000
"""Longer numbers are not read; Python's own conversion refuses 4,300 digits."""
MAX_EXPONENT = 400
"""The largest power of ten read; doubles end at 308."""
PRINTED_DIGITS = 15
"""A decimal with this many significant digits is what a program or a calculator prints of a number that has more."""
DOUBLE_ERROR = Fraction(1, 10**15)
"""Relative error of a printed double: one of 16 or 17 digits may end in digits that a sum has added."""


@dataclass(frozen=True)
class Quantity:
    """A number as written.

    >>> read_quantity("12.5 %")
    Quantity(value=Fraction(25, 2), percent=True, error=Fraction(0, 1), currency='')
    """

    value: Fraction
    """Exact; 28 for `28 %`."""
    percent: bool = False
    """A percent sign follows."""
    error: Fraction = Fraction(0)
    """Relative error of a printed number, see `printed_error`; 0 for a shorter one, which is exact."""
    currency: str = ""
    """Its sign, as in `$5`; empty without one."""


_CURRENCY = "$€£¥₹₩₽¢₺₪฿₫₱₴"
_DIGITS = r"[0-9]+"
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+"
_DECIMAL = rf"(?:{_GROUPED}|{_DIGITS})(?:\.[0-9]*)?|\.[0-9]+|0,[0-9]+"
_TEN = r"\s*(?:\\times|\\cdot|\*|x|×)\s*10\s*\^\s*"
_POWER = r"\{\s*(?P<b>[+-]?[0-9]{1,4})\s*\}|(?P<p>[+-]?[0-9]{1,4})"
_EXPONENT = rf"[eE](?P<e>[+-]?[0-9]{{1,4}})|{_TEN}(?:{_POWER})"
_NUMBER = re.compile(rf"(?P<mantissa>{_DECIMAL})(?:{_EXPONENT})?")
_FRACTION = re.compile(rf"(?P<n>{_DECIMAL})\s*/\s*(?P<d>{_DECIMAL})")
_MIXED = re.compile(rf"(?P<w>{_DIGITS})\s+(?P<n>{_DIGITS})\s*/\s*(?P<d>{_DIGITS})")
_TEX_FRACTION = re.compile(
    r"\\[dtc]?frac\s*(?:\{\s*(-?[0-9.]+)\s*\}|([0-9]))\s*(?:\{\s*(-?[0-9.]+)\s*\}|([0-9]))(?![0-9])"
)
_AROUND = re.compile(
    r"\$\$([^$]+)\$\$ | \$([^$]+)\$ | \\\((.+)\\\) | \\\[(.+)\\\]"
    r"| \\(?:boxed|fbox|text|textbf|textrm|mbox|mathbf|mathrm|mathit)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}",
    re.DOTALL | re.VERBOSE,
)
_SPACES = re.compile(r"\\[,;:! ]|\{,\}|[\u00a0\u2009\u202f]|~")
_PERCENT = re.compile(r"\s*(?:\\?%|percent|per cent)$", re.IGNORECASE)


_NUMBER_SIGNS = str.maketrans("٫٬٪－＋．％＄￥", ".,%-+.%$¥")


def ascii_digits(text: str) -> str:
    """With the decimal digits of other scripts as 0 to 9, and the signs that belong to their numbers.

    >>> ascii_digits("४२ = ٤٢"), ascii_digits("٤٫٢ ＝ ４．２")
    ('42 = 42', '4.2 ＝ 4.2')
    """
    if text.isascii():
        return text
    text = text.translate(_NUMBER_SIGNS)
    return "".join(str(unicodedata.decimal(c)) if not c.isascii() and c.isdecimal() else c for c in text)


def read_quantity(text: str) -> Quantity | None:
    r"""The number that `text` is, or None if it is not exactly one number.

    >>> read_quantity("$1,234.50").value
    Fraction(2469, 2)
    >>> read_quantity("-1 1/2").value
    Fraction(-3, 2)
    >>> read_quantity("32, 349") is None
    True
    """
    if len(text) > 2 * MAX_DIGITS:
        return None
    body = _strip_delimiters(ascii_digits(text))
    percent = _PERCENT.search(body)
    if percent:
        body = body[: percent.start()]
    body, negative, currency = _strip_sign(body)
    if percent and currency:
        return None
    value = _read_unsigned(body)
    if value is None:
        return None
    error = Fraction(0) if "/" in body or "frac" in body else printed_error(re.split("[eE*x×\\\\]", body)[0])
    return Quantity(-value if negative else value, percent is not None, error, currency)


def printed_error(decimal: str) -> Fraction:
    """The relative error of a number as a program prints it; 0 below 15 significant digits and for integers.

    15 digits are rounded, so half a unit of the last; 16 and more are a double with what its arithmetic left.

    >>> printed_error("0.5"), printed_error("0.300000000000000"), printed_error("0.30000000000000004")
    (Fraction(0, 1), Fraction(1, 600000000000000), Fraction(1, 1000000000000000))
    """
    digits = re.sub("[^0-9]", "", decimal).lstrip("0")
    if "." not in decimal or len(digits) < PRINTED_DIGITS:
        return Fraction(0)
    return Fraction(1, 2 * int(digits)) if len(digits) == PRINTED_DIGITS else DOUBLE_ERROR


def same_number(a: Quantity, b: Quantity) -> bool:
    """True if two numbers are the same answer.

    Two currencies are different, as are money and a percentage; a bare number is either. The values must be exactly
    equal, with two exceptions. A percent sign on one side only is a unit or a hundredth:
    `28 %` matches both `28` and `0.28`. A decimal of 15 significant digits or more is a printed number and is compared
    up to its `printed_error`: `0.30000000000000004` is `0.3`, `0.333333333333333` is a third.

    >>> same_number(read_quantity("28%"), read_quantity("0.28"))
    True
    >>> same_number(read_quantity("5"), read_quantity("5.001"))
    False
    >>> same_number(read_quantity("$5"), read_quantity("5")), same_number(read_quantity("$5"), read_quantity("€5"))
    (True, False)
    """
    if len({a.currency, b.currency} - {""}) + (a.percent or b.percent) > 1:
        return False
    error = max(a.error, b.error)
    if close(a.value, b.value, error):
        return True
    if a.percent == b.percent:
        return False
    return close(a.value / 100, b.value, error) if a.percent else close(a.value, b.value / 100, error)


def close(a: Fraction, b: Fraction, error: Fraction) -> bool:
    """Equal up to a relative error."""
    return a == b or abs(a - b) <= error * max(abs(a), abs(b))


def _strip_delimiters(text: str) -> str:
    r"""Without marks, math delimiters, a box, a final full stop, and with `\,` and `{,}` as separators of thousands."""
    body, before = text, ""
    while body != before:
        before = body
        body = unmarked(body)
        body = body.removesuffix(".").rstrip() if not body.startswith(".") else body
        if around := _AROUND.fullmatch(body):
            body = next(inside for inside in around.groups() if inside is not None).strip()
    body = re.sub(r"(?<=[0-9])\s*(?:\{\s?,\s?\}|,\s*\\!|\\,|\\!)\s*(?=[0-9]{3}(?![0-9]))", ",", body)
    return _SPACES.sub(" ", body).replace("\u2212", "-").strip()


def _strip_sign(body: str) -> tuple[str, bool, str]:
    """Without sign and currency, in either order (`-$5`, `$-5`, `5$`), whether it is negative, and the currency."""
    negative = signed = False
    currency = ""
    while body:
        if body[0] in "+-–" and not signed:
            signed, negative, body = True, body[0] != "+", body[1:].lstrip()
        elif not currency and (body[0] in _CURRENCY or body.startswith("\\$")):
            body = body.removeprefix("\\")
            currency, body = body[0], body[1:].lstrip()
        elif not currency and body[-1] in _CURRENCY:
            currency, body = body[-1], body[:-1].removesuffix("\\").rstrip()
        else:
            break
    return body, negative, currency


def _read_unsigned(body: str) -> Fraction | None:
    tex = _TEX_FRACTION.search(body)
    if tex and tex.end() == len(body):
        numerator, denominator = tex[1] or tex[2], tex[3] or tex[4]
        whole = body[: tex.start()].strip()
        fraction = _divide(_signed_decimal(numerator), _signed_decimal(denominator))
        if not whole:
            return fraction
        if fraction is None or fraction < 0 or not re.fullmatch(_DIGITS, whole) or "." in numerator + denominator:
            return None
        return int(whole) + fraction
    if found := _NUMBER.fullmatch(body):
        exponent = int(found["e"] or found["b"] or found["p"] or 0)
        mantissa = _signed_decimal(found["mantissa"])
        return None if mantissa is None or abs(exponent) > MAX_EXPONENT else mantissa * Fraction(10) ** exponent
    mixed = _MIXED.fullmatch(body)
    if mixed and int(mixed["n"]) < int(mixed["d"]):  # `3 141/500` is not a fraction of thousands
        return int(mixed["w"]) + Fraction(int(mixed["n"]), int(mixed["d"]))
    if found := _FRACTION.fullmatch(body):
        return _divide(_signed_decimal(found["n"]), _signed_decimal(found["d"]))
    if mixed:
        part = _divide(_signed_decimal(mixed["n"]), _signed_decimal(mixed["d"]))
        return None if part is None else int(mixed["w"]) + part
    return None


def _signed_decimal(text: str) -> Fraction | None:
    """`1,234.5`, `1 234`, `.5`, `0,5` or `-3`."""
    if re.fullmatch(r"0,[0-9]+", text):
        text = text.replace(",", ".")
    text = text.replace(",", "").replace(" ", "")
    if len(text) > MAX_DIGITS or not re.fullmatch(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", text):
        return None
    whole, _, part = text.partition(".")
    return Fraction(int(whole + part), 10 ** len(part))


def _divide(numerator: Fraction | None, denominator: Fraction | None) -> Fraction | None:
    return None if numerator is None or not denominator else numerator / denominator
