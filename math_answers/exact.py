"""Exact rational values, and the arithmetic of matrices on trees. Call `bounds.check_size` first."""

import math
from fractions import Fraction

from math_answers import expression as tree

MAX_MATRIX = 8
"""Rows and columns."""
MAX_ENTRY = 10_000
"""Nodes in an entry of a product of matrices: `bounds.check_size` would refuse a longer sum."""


def rational(node: tree.Node, indices: dict[str, int] | None = None) -> Fraction | None:
    """The value if arithmetic on fractions gives it, else None (a root, a letter, a division by zero).

    >>> rational(tree.Power(tree.Number(Fraction(9, 4)), tree.Number(Fraction(1, 2))))
    Fraction(3, 2)
    """
    match node:
        case tree.Number(value, _):
            return value
        case tree.Symbol(name):
            return Fraction(indices[name]) if indices and name in indices else None
        case tree.Sum(parts) | tree.Product(parts):
            known = _all_rational(parts, indices)
            if known is None:
                return None
            return sum(known, Fraction(0)) if isinstance(node, tree.Sum) else math.prod(known, start=Fraction(1))
        case tree.Power(base, exponent):
            known = _all_rational((base, exponent), indices)
            return None if known is None else _power(*known)
        case tree.Call(name, arguments):
            known = _all_rational(arguments, indices)
            return None if known is None else _call(name, known)
        case tree.Series():
            return _series(node, indices or {})
        case _:
            return None


def _all_rational(nodes: tuple[tree.Node, ...], indices: dict[str, int] | None) -> list[Fraction] | None:
    values = []
    for node in nodes:
        value = rational(node, indices)
        if value is None:
            return None
        values.append(value)
    return values


def series_length(first: tree.Node, last: tree.Node) -> int | None:
    """The number of terms of a series, None if its bounds are not two integers."""
    ends = [rational(first), rational(last)]
    known = [end.numerator for end in ends if end is not None and end.denominator == 1]
    return max(0, known[1] - known[0] + 1) if len(known) == 2 else None


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
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "factorial" if whole and integers[0] >= 0:
            return Fraction(math.factorial(integers[0]))
        case "binomial" if whole and integers[0] >= 0 and integers[1] >= 0:
            return Fraction(math.comb(integers[0], integers[1]))
        case "gcd" if whole:
            return Fraction(math.gcd(*integers))
        case "lcm" if whole:
            return Fraction(math.lcm(*integers))
        case _:
            return None


def _series(series: tree.Series, indices: dict[str, int]) -> Fraction | None:
    count, start = series_length(series.first, series.last), rational(series.first)
    if count is None or start is None:
        return None
    total = Fraction(0 if series.kind == "sum" else 1)
    for position in range(start.numerator, start.numerator + count):
        value = rational(series.body, {**indices, series.index: position})
        if value is None:
            return None
        total = total + value if series.kind == "sum" else total * value
    return total


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
    """The expression with sums, products, powers, transposes and determinants of matrices carried out.

    Raises TooLargeError above 8 rows (4 for a determinant), ValueError where shapes differ.
    """
    if not any(isinstance(part, tree.Matrix) for part in tree.walk(node)):
        return node
    node = tree.rebuilt(node, tuple(matrices_combined(part) for part in tree.children(node)))
    match node:
        case tree.Matrix(rows) if len(rows) > MAX_MATRIX or len(rows[0]) > MAX_MATRIX:
            raise tree.TooLargeError(f"a matrix of more than {MAX_MATRIX} rows or columns")
        case tree.Sum(terms) if any(isinstance(term, tree.Matrix) for term in terms):
            return _sum_of_matrices(terms)
        case tree.Product(factors) if any(isinstance(factor, tree.Matrix) for factor in factors):
            return _product_of_matrices(factors)
        case tree.Power(tree.Matrix(rows), tree.Symbol("T") | tree.Call("T", _)):
            return tree.Matrix(tuple(zip(*rows, strict=True)))
        case tree.Power(tree.Matrix() as matrix, tree.Number(exponent, _)) if exponent in (2, 3, 4):
            return _product_of_matrices((matrix,) * exponent.numerator)
        case tree.Call("det", (tree.Matrix(rows),)):
            if len(rows) != len(rows[0]) or len(rows) > 4:
                raise tree.TooLargeError("a determinant of more than 4 rows, or not square")
            return _determinant(rows)
        case tree.Matrix(((tree.Matrix() as inner,),)):
            return inner
        case _:
            return node


def _sum_of_matrices(terms: tuple[tree.Node, ...]) -> tree.Node:
    matrices = [term for term in terms if isinstance(term, tree.Matrix)]
    shapes = {(len(matrix.rows), len(matrix.rows[0])) for matrix in matrices}
    if len(matrices) < len(terms) or len(shapes) > 1:
        raise ValueError("a sum of different shapes")
    rows = zip(*(matrix.rows for matrix in matrices), strict=True)
    return tree.Matrix(tuple(tuple(tree.Sum(entries) for entries in zip(*row, strict=True)) for row in rows))


def _product_of_matrices(factors: tuple[tree.Node, ...]) -> tree.Node:
    scalars = tuple(factor for factor in factors if not isinstance(factor, tree.Matrix))
    product: tree.Matrix | None = None
    for factor in factors:
        if not isinstance(factor, tree.Matrix):
            continue
        if product is None:
            product = factor
            continue
        if len(product.rows[0]) != len(factor.rows):
            raise ValueError("a product of shapes that do not fit")
        columns = tuple(zip(*factor.rows, strict=True))
        product = tree.Matrix(tuple(tuple(_dot_product(row, column) for column in columns) for row in product.rows))
        if any(tree.is_larger(entry, MAX_ENTRY) for entry in tree.children(product)):
            raise tree.TooLargeError(f"an entry of more than {MAX_ENTRY} parts")
    assert product is not None
    return tree.Matrix(
        tuple(tuple(tree.Product((*scalars, entry)) if scalars else entry for entry in row) for row in product.rows)
    )


def _dot_product(row: tuple[tree.Node, ...], column: tuple[tree.Node, ...]) -> tree.Node:
    return tree.Sum(tuple(tree.Product(pair) for pair in zip(row, column, strict=True)))


def _determinant(rows: tuple[tuple[tree.Node, ...], ...]) -> tree.Node:
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for column, entry in enumerate(rows[0]):
        minor = _determinant(tuple(row[:column] + row[column + 1 :] for row in rows[1:]))
        term: tree.Node = tree.Product((entry, minor))
        terms.append(tree.negative(term) if column % 2 else term)
    return tree.Sum(tuple(terms))


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
