"""Exact rational values, and sums and multiples of matrices on trees. Call `bounds.check_size` first."""

import math
from fractions import Fraction

from math_answers import expression as tree

MAX_MATRIX = 8
"""Rows and columns."""


def rational(node: tree.Node) -> Fraction | None:
    """The value if arithmetic on fractions gives it, else None (a root, a letter, a division by zero).

    >>> rational(tree.Power(tree.Number(Fraction(9, 4)), tree.Number(Fraction(1, 2))))
    Fraction(3, 2)
    """
    if isinstance(node, tree.Number):
        return node.value
    if not isinstance(node, tree.Sum | tree.Product | tree.Power | tree.Call):
        return None
    values = []
    for part in tree.children(node):
        value = rational(part)
        if value is None:
            return None
        values.append(value)
    match node:
        case tree.Sum():
            return sum(values, Fraction(0))
        case tree.Product():
            return math.prod(values, start=Fraction(1))
        case tree.Power():
            return _power(*values)
        case tree.Call(name, _):
            return _call(name, values)


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator > 1:
        if base < 0 or exponent.denominator > 64:
            return None
        roots = [_integer_root(part, exponent.denominator) for part in (base.numerator, base.denominator)]
        if None in roots:
            return None
        base = Fraction(roots[0] or 0, roots[1] or 1)
    if base == 0 and exponent <= 0:
        return None  # 0^0 is left undefined
    return base**exponent.numerator


def _integer_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(number)
        return root if root * root == number else None
    if number < 2:
        return number
    root, smaller = 0, 1 << (number.bit_length() // degree + 1)
    while root == 0 or smaller < root:  # Newton's method from above
        root = smaller
        smaller = ((degree - 1) * root + number // root ** (degree - 1)) // degree
    return root if root**degree == number else None


def _call(name: str, values: list[Fraction]) -> Fraction | None:
    integers = [value.numerator for value in values if value.denominator == 1]
    whole = len(integers) == len(values)
    match name:
        case "abs":
            return abs(values[0])
        case "floor":
            return Fraction(math.floor(values[0]))
        case "ceil":
            return Fraction(math.ceil(values[0]))
        case "factorial" if whole and integers[0] >= 0:
            return Fraction(math.factorial(integers[0]))
        case "binomial" if whole and integers[0] >= 0 and integers[1] >= 0:
            return Fraction(math.comb(integers[0], integers[1]))
        case _:
            return None


def signs_chosen(node: tree.Node) -> list[tree.Node]:
    r"""The values of an expression with `\pm`: the upper signs everywhere, then the lower ones; one if it has none."""
    if not any(isinstance(part, tree.PlusMinus) for part in tree.walk(node)):
        return [node]
    return [_with_signs(node, upper) for upper in (1, -1)]


def _with_signs(node: tree.Node, upper: int) -> tree.Node:
    node = tree.rebuilt(node, tuple(_with_signs(part, upper) for part in tree.children(node)))
    if isinstance(node, tree.PlusMinus):
        return node.value if node.sign * upper > 0 else tree.negative(node.value)
    return node


def without_degrees(node: tree.Node) -> tuple[tree.Node, bool]:
    """The expression with degrees as a plain unit, and whether it had any outside functions.

    Inside a function a degree remains pi / 180.
    """
    if isinstance(node, tree.Degrees):
        return without_degrees(node.value)[0], True
    if isinstance(node, tree.Sum | tree.Product | tree.PlusMinus):
        parts = [without_degrees(part) for part in tree.children(node)]
        return tree.rebuilt(node, tuple(part for part, _ in parts)), any(found for _, found in parts)
    return node, False


def matrices_combined(node: tree.Node) -> tree.Node:
    """The expression with sums of matrices, and products of a matrix with numbers, carried out.

    Products and powers of matrices stay as they are written. Raises TooLargeError above 8 rows or columns, ValueError
    where the shapes of a sum differ.
    """
    if not any(isinstance(part, tree.Matrix) for part in tree.walk(node)):
        return node
    node = tree.rebuilt(node, tuple(matrices_combined(part) for part in tree.children(node)))
    match node:
        case tree.Matrix(rows) if len(rows) > MAX_MATRIX or len(rows[0]) > MAX_MATRIX:
            raise tree.TooLargeError(f"a matrix of more than {MAX_MATRIX} rows or columns")
        case tree.Sum(terms) if any(isinstance(term, tree.Matrix) for term in terms):
            return _sum_of_matrices(terms)
        case tree.Product(factors) if sum(isinstance(factor, tree.Matrix) for factor in factors) == 1:
            numbers = tuple(factor for factor in factors if not isinstance(factor, tree.Matrix))
            matrix = next(factor for factor in factors if isinstance(factor, tree.Matrix))
            return tree.Matrix(tuple(tuple(tree.Product((*numbers, entry)) for entry in row) for row in matrix.rows))
        case _:
            return node


def _sum_of_matrices(terms: tuple[tree.Node, ...]) -> tree.Node:
    matrices = [term for term in terms if isinstance(term, tree.Matrix)]
    shapes = {(len(matrix.rows), len(matrix.rows[0])) for matrix in matrices}
    if len(matrices) < len(terms) or len(shapes) > 1:
        raise ValueError("a sum of different shapes")
    rows = zip(*(matrix.rows for matrix in matrices), strict=True)
    return tree.Matrix(tuple(tuple(tree.Sum(entries) for entries in zip(*row, strict=True)) for row in rows))


def approximate(node: tree.Node) -> float:
    """The value in double precision, nan for anything but a real number of arithmetic, roots, pi and e."""
    try:
        return _approximate(node)
    except (OverflowError, ZeroDivisionError, ValueError):
        return math.nan


def _approximate(node: tree.Node) -> float:
    match node:
        case tree.Number(value, _):
            return float(value) if abs(value) < 10**300 else math.nan
        case tree.Constant("pi"):
            return math.pi
        case tree.Constant("e"):
            return math.e
        case tree.Sum(parts):
            return math.fsum(map(_approximate, parts))
        case tree.Product(parts):
            return math.prod(map(_approximate, parts))
        case tree.Power(base, exponent):
            power = _approximate(base) ** _approximate(exponent)
            return power if isinstance(power, float) else math.nan
        case tree.Call("ln", (argument,)):
            return math.log(_approximate(argument))
        case _:
            return math.nan
