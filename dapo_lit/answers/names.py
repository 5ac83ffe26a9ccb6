"""What can stand left of an equals sign as the name of an answer."""

from dapo_lit.answers.expression import MINUS_ONE, Call, Constant, Node, Power, Product, Symbol
from dapo_lit.answers.structure import Answer, Ratio, Raw, Scalar, Several, Words


def is_name(answer: Answer) -> bool:
    r"""Whether an answer only names a quantity: `x`, `AB`, `f(x)`, `P(A)`, `(p, q)`, `\text{Area}`, `S_1 : S_2`.

    `a + b` and `x^2` are expressions, not names: `x^2 = 4` does not say that the answer is 4.
    """
    match answer:
        case Scalar(node, _, _, _):
            return _names(node)
        case Words() | Raw():
            return True
        case Several(items, "()" | "") | Ratio(items):
            return all(is_name(item) for item in items)
        case _:
            return False


def _names(node: Node) -> bool:
    match node:
        case Symbol() | Constant("e" | "i"):
            return True
        case Product(factors):
            return all(_names(factor) for factor in factors)
        case Power(base, exponent):
            return exponent == MINUS_ONE and _names(base)
        case Call(name, arguments):
            return len(name.rstrip("'")) == 1 or (name == "abs" and all(_names(argument) for argument in arguments))
        case _:
            return False
