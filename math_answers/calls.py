"""Letters and functions: a run of letters as a function, a word or a product, and what a function applies to."""

from fractions import Fraction

from math_answers import expression as tree
from math_answers.literals import number
from math_answers.reader import Reader
from math_answers.tokens import ParseError, Token
from math_answers.vocabulary import (
    APPLIED,
    BRACKETED,
    CLOSING,
    FUNCTIONS,
    GREEK,
    HALF,
    INVERSES,
    SPELLINGS,
    WORDS,
)


def read_letters(reader: Reader, token: Token) -> tree.Node:
    """A run of letters: a function, a word such as `pi`, or a product of symbols."""
    function = function_name(token)
    if function is not None:
        return read_function(reader, function)
    if token.text in WORDS:
        return WORDS[token.text]
    if token.text in GREEK:
        return tree.Symbol(token.text)
    if token.text == "sum" or len(token.text) > 3:
        raise ParseError(f"the word {token.text!r}")
    if len(token.text) > 1:
        reader.tokens[reader.index : reader.index] = [Token("name", letter) for letter in token.text[1:]]
    letter = token.text[0]
    following = reader.peek()
    if letter in APPLIED and len(token.text) == 1:
        primes = ""
        while reader.at("'"):
            primes += reader.take().text
        if reader.at("("):
            reader.take()
            return tree.Call(letter + primes, read_arguments(reader, ")"))
        if primes:
            return tree.Symbol(letter + primes)
    if len(token.text) == 1 and following is not None and following.kind == "number" and not following.spaced:
        reader.take()
        return tree.Symbol(f"{letter}_{following.text}")
    if letter in ("e", "i") and not reader.at("_"):
        return tree.Constant("e") if letter == "e" else tree.Constant("i")
    return tree.Symbol(letter)


def function_name(token: Token) -> str | None:
    """The function that a token calls, None if it is none."""
    if token.kind not in ("name", "command"):
        return None
    name = SPELLINGS.get(token.text, token.text)
    if token.kind == "command" and token.text in ("sqrt", "binom"):
        return None  # LaTeX's own, with braces
    return name if name in FUNCTIONS or name in BRACKETED else None


def read_function(reader: Reader, name: str) -> tree.Node:
    if name == "sqrt":
        return tree.Power(reader.argument(split=False), HALF)
    if name in BRACKETED:
        return bracketed_call(reader, name)
    base: tree.Node | None = None
    exponent: tree.Node | None = None
    while reader.at("^", "_"):
        if reader.take().text == "^":
            exponent = reader.argument(split=False)
        elif name == "log":
            base = logarithm_base(reader)
        else:
            raise ParseError(f"a subscript of {name}")
    if exponent == tree.MINUS_ONE and name in INVERSES:
        name, exponent = INVERSES[name], None
    argument = function_argument(reader)
    if name == "lg":
        name, base = "log", tree.Number(Fraction(10))
    node = _call(name, argument, base)
    return node if exponent is None else tree.Power(node, exponent)


def logarithm_base(reader: Reader) -> tree.Node:
    r"""`\log_2 8`, `\log_{10} x`, `\log_10 x`; but `\log_28` is the logarithm of 8."""
    token = reader.peek()
    if token is None or token.kind != "number":
        return reader.argument(split=True)
    reader.take()
    if len(token.text) > 1 and token.text.isdigit() and not reader.starts_factor(tree.MINUS_ONE):
        reader.tokens.insert(reader.index, Token("number", token.text[1:]))
        return number(token.text[0])
    return number(token.text)


def function_argument(reader: Reader) -> tree.Node:
    r"""Brackets if they open; else the factors that follow, up to a sign or another function: `\sin 2x \cos y`."""
    if reader.at("(", "["):
        reader.take()
        closing = CLOSING[reader.tokens[reader.index - 1].text]
        node = reader.expression()
        reader.expect(closing)
        return node
    if reader.at("{"):
        return reader.argument(split=False)
    with reader.nested():
        return bare_argument(reader)


def bare_argument(reader: Reader) -> tree.Node:
    if reader.at("-"):
        reader.take()
        return tree.negative(function_argument(reader))
    factors = [reader.factor()]
    while reader.starts_factor(factors[-1]):
        token = reader.peek()
        if token is not None and (function_name(token) or (token.kind == "sign" and token.text in "([")):
            break
        factors.append(reader.factor())
    return factors[0] if len(factors) == 1 else tree.Product(tuple(factors))


def bracketed_call(reader: Reader, name: str) -> tree.Node:
    closing = {"(": ")", "{": "}", "\\{": "\\}", "[": "]"}.get(reader.take().text)
    if closing is None:
        raise ParseError(f"{name} without brackets")
    arguments = read_arguments(reader, closing)
    if len(arguments) != BRACKETED[name]:
        raise ParseError(f"{name} of {len(arguments)} arguments")
    return tree.Call(name, arguments)


def read_arguments(reader: Reader, closing: str) -> tuple[tree.Node, ...]:
    nodes = [reader.expression()]
    while reader.at(","):
        reader.take()
        nodes.append(reader.expression())
    reader.expect(closing)
    return tuple(nodes)


def _call(name: str, argument: tree.Node, base: tree.Node | None) -> tree.Node:
    match name:
        case "cis":
            return tree.Sum(
                (tree.Call("cos", (argument,)), tree.Product((tree.Constant("i"), tree.Call("sin", (argument,)))))
            )
        case "exp":
            return tree.Power(tree.Constant("e"), argument)
        case "log" if base is not None:
            return tree.quotient(tree.Call("ln", (argument,)), tree.Call("ln", (base,)))
        case _:
            return tree.Call(name, (argument,))
