"""The words of the grammar: functions, constants, Greek letters, and their spellings."""

from fractions import Fraction

from math_answers.expression import Constant, Number
from math_answers.tokens import words

GREEK = words(
    """
    alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi
    psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega vartheta ell hbar
    """
)
INVERSES = {name: "arc" + name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")}
FUNCTIONS = frozenset([*INVERSES, *INVERSES.values(), "ln", "log", "lg", "exp", "det", "coth", "sech", "csch", "cis"])
"""Functions of one argument that need no brackets."""
BRACKETED = {"abs": 1, "floor": 1, "ceil": 1, "sqrt": 1, "binomial": 2}
"""Functions whose arguments are in brackets, and how many they take."""
SPELLINGS = {
    **{"a" + name: inverse for name, inverse in INVERSES.items()},
    **{"ceiling": "ceil", "Abs": "abs", "tg": "tan", "ctg": "cot", "arctg": "arctan", "Log": "log"},
    **{"binom": "binomial"},
}
WORDS = {"pi": Constant("pi"), "infty": Constant("oo"), "infinity": Constant("oo"), "inf": Constant("oo")}
WORDS["oo"] = Constant("oo")
APPLIED = frozenset("fghFGH")
"""Letters that a bracket makes a function: `f(x)` is f of x, `x(x+1)` a product."""
CLOSING = {"(": ")", "[": "]", "\\{": "\\}"}
HALF = Number(Fraction(1, 2))
