"""Evaluate two expressions to many digits at the same points and compare the values.

Imports mpmath, so only worker processes import this module. Precision follows the size of the expressions: with b bits
as `bounds.check_size` finds them, values are computed to 40 + 0.61 b digits and must agree to 30 + 0.3 b, so neither
cancellation nor a small addend (`\\pi + 10^{-60}`) hides a difference.
"""

import zlib
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
from mpmath import mp, mpc, mpf

from math_answers import expression as tree
from math_answers.bounds import SYMBOL_BITS, ZERO, check_size, printed_error
from math_answers.breaks import Letters, letters_around_breaks
from math_answers.exact import rational

POSITIVE_POINTS = 4
MIXED_POINTS = 4
_ROUND = 25
"""Digits to which arguments of an unknown function are compared."""


class UndefinedError(ArithmeticError):
    """The expression has no value at a point."""


@dataclass(frozen=True, slots=True)
class Point:
    letters: Letters
    real: bool
    """The values count only if both are real, found without an even root of a negative number."""


def agree(a: tree.Node, b: tree.Node) -> bool | None:
    """True if two scalar expressions have the same values, None if neither has one at any point.

    Letters are drawn positive four times and with mixed signs four times, all of about 1, and around all places where
    an absolute value or a root may break (`breaks.py`). Complex values count at the four positive points only:
    `x^{2/3}` is the cube root of x squared, `\\sqrt{x^2}` is not x, and what is only defined for positive letters
    (`\\ln x^2`, `2 \\ln x`) is compared there.
    """
    points, bits = _points(a, b)
    error = printed_error(a, b)
    with mp.workdps(int(40 + 0.61 * bits)):
        tolerance = mpf(10) ** -int(30 + 0.3 * bits)
        compared = 0
        for point in points if tree.is_open(a) or tree.is_open(b) else points[:1]:
            values = [_value_at(node, point) for node in (a, b)]
            defined = [value for value in values if value is not None]
            if not defined or (point.real and not (len(defined) == 2 and all(map(_is_real, defined)))):
                continue
            if len(defined) < 2 or not _same(values[0], values[1], tolerance, error):
                return False
            compared += 1
        return True if compared else None


def ratio_sign(a: tree.Node, b: tree.Node) -> int | None:
    """1 or -1 if a / b is one real number of that sign at every point, 0 if it is not constant, None if undefined."""
    points, bits = _points(a, b)
    with mp.workdps(int(40 + 0.61 * bits)):
        tolerance = mpf(10) ** -int(30 + 0.3 * bits)
        ratios = []
        for point in points:
            above, below = _value_at(a, point), _value_at(b, point)
            if above is None or below is None or abs(below) <= tolerance or abs(above) <= tolerance:
                continue
            ratios.append(above / below)
        if len(ratios) < 3:
            return None
        if not all(_is_real(ratio) and _same(ratio, ratios[0], tolerance) for ratio in ratios):
            return 0
        return 1 if mp.re(ratios[0]) > 0 else -1


def _points(a: tree.Node, b: tree.Node) -> tuple[list[Point], float]:
    """Where two expressions are compared, and the bits of the values there; raises TooLargeError if there are too many
    points."""
    bits = check_size(a) + check_size(b)
    around = letters_around_breaks(a, b)
    if around is None:
        raise tree.TooLargeError("an absolute value or a root of many numbers")
    points = [near(number) for number in range(POSITIVE_POINTS + MIXED_POINTS)]
    if around[0]:
        symbol_bits = max(SYMBOL_BITS, around[1])
        bits = check_size(a, symbol_bits) + check_size(b, symbol_bits)
    return points + [Point(letters, real=True) for letters in around[0]], bits


def _same(a: Any, b: Any, tolerance: Any, error: Fraction = ZERO) -> bool:
    if mp.isinf(a) or mp.isinf(b):
        return bool(a == b)
    scale = max(abs(a), abs(b))
    return bool(
        abs(a - b) <= (mpf(error.numerator) / error.denominator * scale if error else tolerance * max(1, scale))
    )


def _is_real(value: Any) -> bool:
    return not isinstance(value, mpc) or bool(abs(value.imag) <= mpf(10) ** -20 * max(1, abs(value.real)))


def _value_at(node: tree.Node, point: Point) -> Any:
    """The value at a point, None where it is undefined."""
    try:
        value = evaluate(node, point)
    except (UndefinedError, ZeroDivisionError, ValueError, OverflowError, mpmath.libmp.ComplexResult):
        return None
    return None if mp.isnan(value) else value


def near(number: int) -> Point:
    """A numbered point with letters between 1/4 and 4, from the fifth one on also between -4 and -1/4."""
    return Point(partial(_letter, point=number), real=number >= POSITIVE_POINTS)


def _letter(name: str, point: int) -> Any:
    """The same in every process."""
    draw = zlib.crc32(f"{name}|{point}".encode()) / 2**32 + zlib.crc32(f"{point}|{name}".encode()) / 2**64
    value = mpf(draw) * mpf("3.75") + mpf("0.25")
    negative = point >= POSITIVE_POINTS and zlib.crc32(f"{name}?{point}".encode()) % 3
    return -value if negative else value


def evaluate(node: tree.Node, point: Point) -> Any:
    """The value at a point, in the working precision of mpmath."""
    match node:
        case tree.Number(value, _):
            return mpf(value.numerator) / value.denominator
        case tree.Symbol(name):
            return point.letters(name)
        case tree.Constant(name):
            return {"pi": +mp.pi, "e": +mp.e, "i": mpc(0, 1), "oo": mp.inf}[name]
        case tree.Sum(terms):
            return mp.fsum([evaluate(term, point) for term in terms])
        case tree.Product(factors):
            return mp.fprod([evaluate(factor, point) for factor in factors])
        case tree.Power(base, exponent):
            return _power(evaluate(base, point), exponent, point)
        case tree.Call("floor", (argument,)):
            return _floor(argument, point)
        case tree.Call("ceil", (argument,)):
            return -_floor(tree.negative(argument), point)
        case tree.Call(name, arguments):
            return _call(name, [evaluate(argument, point) for argument in arguments], point)
        case tree.Degrees(value):
            return evaluate(value, point) * mp.pi / 180
        case tree.Series():  # not evaluated: a letter named by its form
            return point.letters(repr(tree.canonical(node)))
        case _:
            raise UndefinedError(f"{type(node).__name__} has no value")


def _power(base: Any, exponent: tree.Node, point: Point) -> Any:
    exact = rational(exponent)
    if exact is None:
        return mp.power(base, evaluate(exponent, point))
    if base == 0 and exact <= 0:
        raise UndefinedError("a power of zero")
    if exact.denominator == 1:
        return base**exact.numerator
    if _is_real(base) and mp.re(base) < 0 and exact.denominator % 2:
        # The real root: the cube root of -8 is -2.
        root = mp.power(-mp.re(base), mpf(exact.numerator) / exact.denominator)
        return -root if exact.numerator % 2 else root
    if point.real and exact.denominator % 2 == 0 and _is_real(base) and mp.re(base) < 0:
        raise UndefinedError("an even root of a negative number")  # \sqrt{x} \sqrt{y} would be -\sqrt{xy} there
    if exact == Fraction(1, 2):
        return mp.sqrt(base)
    return mp.power(base, mpf(exact.numerator) / exact.denominator)


_FUNCTIONS = {
    **{"sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc},
    **{"arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "arccot": mp.acot, "arcsec": mp.asec},
    **{"arccsc": mp.acsc, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "coth": mp.coth, "sech": mp.sech},
    **{"csch": mp.csch, "arcsinh": mp.asinh, "arccosh": mp.acosh, "arctanh": mp.atanh},
    **{"ln": mp.log, "abs": abs, "factorial": mp.factorial, "binomial": mp.binomial},
}
_POLES = ("tan", "cot", "sec", "csc")


def _call(name: str, values: list[Any], point: Point) -> Any:
    if name in _FUNCTIONS:
        result = _FUNCTIONS[name](*values)
        if name in _POLES and abs(result) > mpf(10) ** 20:
            raise UndefinedError(f"a pole of {name}")
        return result
    # An unknown function: any value, as long as equal arguments give equal ones.
    return point.letters(name + "|".join(mp.nstr(value, _ROUND) for value in values))


def _floor(argument: tree.Node, point: Point) -> Any:
    r"""With letters inside, the argument less an unknown function of its fraction.

    The floor has too many breaks to be compared between them: `\lfloor x \rfloor` is `\lceil x \rceil - 1` except at
    integers. What is equal for any such function is equal for the floor.
    """
    value = evaluate(argument, point)
    if not _is_real(value):
        raise UndefinedError("the floor of a complex number")
    real = mp.re(value)
    if abs(real - mp.nint(real)) < mpf(10) ** -20:
        return mp.nint(real)
    whole = mp.floor(real)
    return real - point.letters("fraction|" + mp.nstr(real - whole, _ROUND)) if tree.is_open(argument) else whole
