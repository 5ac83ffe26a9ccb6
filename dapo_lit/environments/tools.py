"""The environments that come with the package, each a function of the problem and of the policy's turns so far.

An answer depends on nothing else, so that an episode which was interrupted goes on as it would have. Nothing that a
policy wrote is executed: a calculation is parsed here, by hand, and computed in exact fractions.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from dapo_lit.rewards.functions import RewardProblem

LONGEST = 200
"""Characters of a calculation; no power is known, so its result has hardly more."""
ERROR = "error"
"""The answer to a calculation that cannot be computed, and to a key that the table does not have."""

_CHARACTERS = "0123456789.+-*/() "
_TOKENS = re.compile(r"\d+(?:\.\d+)?|[+\-*/()]")
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "~": 3}
"""How tightly an operator binds; `~` is the sign of a number."""


def calculator(problem: RewardProblem, responses: Sequence[str]) -> str | None:
    """The value of the calculation that the last turn ends with, as in `37*48=`; None where it ends with none.

    >>> nothing = RewardProblem("", "", "")
    >>> calculator(nothing, ["37*48="]), calculator(nothing, ["so 1/3+1 ="]), calculator(nothing, ["#1776"])
    ('1776', '4/3', None)
    """
    written, ends, rest = responses[-1].rstrip().rpartition("=")
    # No pattern that searches: on long turns of digits it would look at every pair of places.
    called = written[len(written.rstrip(_CHARACTERS)) :].strip()
    return calculated(called) if ends and called and not rest else None


def calculated(expression: str) -> str:
    """The exact value of sums, differences, products and quotients, in lowest terms, or ERROR.

    >>> calculated("2*(3-5)"), calculated("1.5/2"), calculated("1/0"), calculated("2+"), calculated("2 3")
    ('-4', '3/4', 'error', 'error', 'error')
    """
    tokens = _TOKENS.findall(expression[: LONGEST + 1])
    # Also where something between the tokens is none, as the point of `.5`.
    if len(expression) > LONGEST or "".join(tokens) != expression.replace(" ", ""):
        return ERROR
    try:
        return str(_value(tokens))
    except (ValueError, IndexError, ZeroDivisionError):
        return ERROR


def _value(tokens: Sequence[str]) -> Fraction:
    """Dijkstra's shunting yard: no recursion that a row of brackets could exhaust.

    Raises ValueError, IndexError or ZeroDivisionError for what has no value.
    """
    values: list[Fraction] = []
    waiting: list[str] = []
    wants_number = True

    def apply() -> None:
        operator, right = waiting.pop(), values.pop()
        if operator == "~":
            values.append(-right)
            return
        left = values.pop()
        match operator:
            case "+":
                values.append(left + right)
            case "-":
                values.append(left - right)
            case "*":
                values.append(left * right)
            case "/":
                values.append(left / right)
            case _:
                raise ValueError("a bracket is open")

    for token in tokens:
        # Numbers and operators take turns; what else stands in their place has no value.
        if token == "(" or token[0].isdigit() or (token == "-" and wants_number):
            if not wants_number:
                raise ValueError("a number follows a number")
            if token[0].isdigit():
                values.append(Fraction(token))
                wants_number = False
            else:
                waiting.append("~" if token == "-" else token)
        elif wants_number:
            raise ValueError("a number is missing")
        elif token == ")":
            while waiting[-1] != "(":
                apply()
            waiting.pop()
        else:
            while waiting and waiting[-1] != "(" and _BINDS[waiting[-1]] >= _BINDS[token]:
                apply()
            waiting.append(token)
            wants_number = True
    while waiting:
        apply()
    (value,) = values
    return value


def lookup(problem: RewardProblem, responses: Sequence[str]) -> str | None:
    """The entry of the problem's `table` (a column of the data) under what follows the last `?` of the last turn; None
    where that turn has no `?`.

    >>> capitals = RewardProblem("", "", "", {"table": {"France": "Paris"}})
    >>> lookup(capitals, ["?France"]), lookup(capitals, ["?France", "?Spain"]), lookup(capitals, ["#Paris"])
    ('Paris', 'error', None)
    """
    _, mark, key = responses[-1].rpartition("?")
    if not mark:
        return None
    table = problem.meta.get("table")
    if not isinstance(table, Mapping):
        raise ValueError(f"problem {problem.id} has no column `table` with a mapping")
    entry = table.get(key.strip())
    # None: Parquet gives every row of a column the keys of all.
    return ERROR if entry is None else str(entry)


TOOLS = {"calculator": calculator, "lookup": lookup}
SECOND_TRY = "second_try"
"""The environment that says when an answer is wrong: it asks the verifier, and is no function of its own."""
WRONG = "wrong"
"""What it says."""
