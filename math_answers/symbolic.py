"""The exact comparison: the difference as a sympy expression, multiplied out.

Trees are built with sympy's constructors, node by node: no string reaches `sympify`, `parse_expr` or `eval`. Imports
sympy, so only worker processes import this module.
"""

import sys
from typing import Any

import sympy
from sympy.parsing import sympy_parser

from math_answers import expression as tree
from math_answers.bounds import expansion_terms, printed_error

MAX_EXPANSION = 400
"""Monomials; larger differences are left to the evaluation at points."""

_FUNCTIONS: dict[str, Any] = {
    **{"sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc},
    **{"arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh},
    **{"tanh": sympy.tanh, "ln": sympy.log, "abs": sympy.Abs, "factorial": sympy.factorial, "floor": sympy.floor},
    **{"ceil": sympy.ceiling, "binomial": sympy.binomial},
}


def difference(a: tree.Node, b: tree.Node) -> bool | None:
    """True if a - b multiplies out to 0, False if to another number, None if sympy leaves more than a number."""
    if printed_error(a, b) or expansion_terms(a) + expansion_terms(b) > MAX_EXPANSION:
        return None
    left, right = _sympy(a), _sympy(b)
    if left is None or right is None:
        return None
    rest = sympy.expand(left - right)
    if rest == 0:
        return True
    return False if isinstance(rest, sympy.Rational) else None


def _sympy(node: tree.Node) -> Any:
    """The sympy expression, None if a part has no counterpart here."""
    if isinstance(node, tree.Series):
        return None  # before its parts, whose size nobody has checked
    parts = [_sympy(part) for part in tree.children(node)]
    if any(part is None for part in parts):
        return None
    match node:
        case tree.Number(value, _):
            return sympy.Rational(value.numerator, value.denominator)
        case tree.Symbol(name):
            return sympy.Dummy() if name.startswith("_") else sympy.Symbol(name)
        case tree.Constant(name):
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}[name]
        case tree.Sum():
            return sympy.Add(*parts)
        case tree.Product():
            return sympy.Mul(*parts)
        case tree.Power():
            below, above = parts
            # Roots of negative numbers are real here and complex there.
            return None if below.is_negative and not above.is_integer else sympy.Pow(below, above)
        case tree.Call(name, _) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*parts)
        case tree.Degrees():
            return parts[0] * sympy.pi / 180
        case _:
            return None


def refuse_evaluation() -> None:
    """Makes sympy refuse to evaluate text in this process: `sympify` and `parse_expr` raise for every string."""

    def refused(*args: object, **kwargs: object) -> None:
        raise PermissionError("text is never evaluated in a verifier")

    sympy_parser.parse_expr = refused
    sympy_parser.eval_expr = refused
    for name in list(sys.modules):
        module = sys.modules[name]
        if name.startswith("sympy") and getattr(module, "parse_expr", refused) is not refused:
            module.parse_expr = refused  # type: ignore[attr-defined]
