"""The exact comparison: the difference as a sympy expression, multiplied out.

Trees are built with sympy's constructors, node by node: no string reaches `sympify`, `parse_expr` or `eval`. Imports
sympy, so only worker processes import this module.
"""

import sys
from typing import Any

import sympy
from sympy.parsing import sympy_parser

from math_answers import expression as tree
from math_answers.bounds import expansion_terms, has_double

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
    if has_double(a) or has_double(b) or expansion_terms(a) + expansion_terms(b) > MAX_EXPANSION:
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
    match node:
        case tree.Number(value, _):
            return sympy.Rational(value.numerator, value.denominator)
        case tree.Symbol(name):
            return sympy.Dummy() if name.startswith("_") else sympy.Symbol(name)
        case tree.Constant(name):
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}[name]
        case tree.Sum(parts) | tree.Product(parts):
            converted = [_sympy(part) for part in parts]
            if any(part is None for part in converted):
                return None
            return sympy.Add(*converted) if isinstance(node, tree.Sum) else sympy.Mul(*converted)
        case tree.Power(base, exponent):
            below, above = _sympy(base), _sympy(exponent)
            if below is None or above is None or (below.is_negative and not above.is_integer):
                return None  # roots of negative numbers are real here and complex there
            return sympy.Pow(below, above)
        case tree.Call(name, arguments):
            converted = [_sympy(argument) for argument in arguments]
            if name not in _FUNCTIONS or any(part is None for part in converted):
                return None
            return _FUNCTIONS[name](*converted)
        case tree.Degrees(value):
            inside = _sympy(value)
            return None if inside is None else inside * sympy.pi / 180
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
