"""No function is taken for the value that it approaches, at any argument that is evaluated at all."""

from fractions import Fraction

import pytest

from math_answers import points
from math_answers.bounds import check_size
from math_answers.expression import Call, Constant, Node, Number, Power, Product, Sum, TooLargeError, quotient

ZERO, ONE = Number(Fraction(0)), Number(Fraction(1))
E = Constant("e")
RIGHT_ANGLE = quotient(Constant("pi"), Number(Fraction(2)))
APPROACHED: dict[str, Node] = {
    **{"tanh": ONE, "coth": ONE, "sech": ZERO, "csch": ZERO, "arctan": RIGHT_ANGLE, "arccot": ZERO},
    **{"arcsec": RIGHT_ANGLE, "arccsc": ZERO},
}
"""What functions of one argument approach as it grows."""


def are_evaluated(*nodes: Node) -> bool:
    try:
        for node in nodes:
            check_size(node)
    except TooLargeError:
        return False
    return True


def assert_never_reached(function, approached) -> None:
    """At larger and larger arguments, as long as they are evaluated."""
    tried, value = 0, Fraction(2)
    while are_evaluated(function(Number(value)), approached(Number(value))):
        assert points.agree(function(Number(value)), approached(Number(value))) is False, value
        tried += 1
        value = Fraction(int(value * Fraction(5, 4)) + 1) if value < 10_000 else value**2
    assert tried > 20


@pytest.mark.parametrize("name", APPROACHED)
def test_a_function_is_not_the_value_that_it_approaches(name):
    assert_never_reached(lambda x: Call(name, (x,)), lambda x: APPROACHED[name])


def test_hyperbolic_functions_are_not_the_exponential_functions_that_they_approach():
    def exponential(x: Node, sign: int = 1) -> Node:
        return Power(E, Product((Number(Fraction(sign)), x)))

    half = Number(Fraction(1, 2))
    for name in ("sinh", "cosh"):
        assert_never_reached(lambda x, name=name: Call(name, (x,)), lambda x: Product((half, exponential(x))))
    assert_never_reached(lambda x: Call("sinh", (x,)), lambda x: Call("cosh", (x,)))
    assert_never_reached(lambda x: exponential(x, -1), lambda x: ZERO)
    assert_never_reached(lambda x: Call("arctan", (exponential(x),)), lambda x: RIGHT_ANGLE)
    assert_never_reached(
        lambda x: Call("tanh", (x,)), lambda x: Sum((ONE, Product((Number(Fraction(-2)), exponential(x, -2)))))
    )
