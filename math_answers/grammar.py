r"""Tokens of one scalar expression to its tree, by recursive descent.

    expression  term (("+" | "-" | \pm | \mp) term)*
    term        factor ((\cdot | "*" | "/" | nothing) factor)*
    factor      "-" factor | atom ("^" argument | "_" subscript | "!" | ^\circ)*
    atom        number | letter | \frac.. | \sqrt.. | \binom.. | function argument | \sum.. | matrix | brackets

Plain spellings are read too (`sqrt(2)`, `2*x`, `x**2`, `pi`, `ln(x)`). What is not in the grammar raises ParseError.
Integrals, limits and derivatives are left out on purpose: an answer that restates the question does not count. So is
the value of a series, whose tree is compared as it is written.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from math_answers import expression as tree
from math_answers.calls import function_name, read_letters
from math_answers.commands import read_command, read_matrix
from math_answers.literals import mixed_number, number
from math_answers.tokens import ParseError, Token, words
from math_answers.vocabulary import CLOSING, GREEK

MAX_POSTFIXES = 8
"""Powers, factorials, degrees, primes and subscripts of one atom, in a row."""
MAX_NESTING = 40
"""Largest depth of nested brackets, arguments and signs in an answer."""
MAX_DEPTH = 200
"""Depth of a tree at most; everything that walks over trees is recursive."""


def parse_expression(tokens: list[Token]) -> tree.Node:
    """The tree of a whole token list; raises ParseError if they are not one scalar expression."""
    parser = Grammar(tokens)
    node = parser.expression()
    if parser.index < len(parser.tokens):
        raise ParseError(f"{parser.tokens[parser.index].text!r} is not expected")
    return _shallow(node)


_STARTING = words("overline bar hat frac sqrt binom pi infty sum prod imath")
"""Commands that start a factor, besides Greek letters and functions."""


class Grammar:
    """A position in a list of tokens; the rules in other files use it as a `reader.Reader`."""

    def __init__(self, tokens: list[Token]):
        self.tokens = list(tokens)
        self.index = 0
        self._nesting = 0
        self.bars = 0
        """Number of open absolute values: inside one, a bar closes it."""

    def peek(self, offset: int = 0) -> Token | None:
        position = self.index + offset
        return self.tokens[position] if position < len(self.tokens) else None

    def at(self, *texts: str) -> bool:
        """True if the next token is one of these signs or commands."""
        token = self.peek()
        return token is not None and token.kind in ("sign", "command") and token.text in texts

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise ParseError("ends too early")
        self.index += 1
        return token

    def take_if(self, *texts: str) -> bool:
        """True if the next token was one of these, which is then behind the reader."""
        found = self.at(*texts)
        self.index += found
        return found

    def expect(self, text: str) -> None:
        if not self.take_if(text):
            raise ParseError(f"{text!r} is missing")

    @contextmanager
    def nested(self) -> Iterator[None]:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ParseError("nested too deep")
        yield
        self._nesting -= 1

    def expression(self) -> tree.Node:
        with self.nested():
            terms = [self.signed_term()]
            while self.at("+", "-", "pm", "mp"):
                terms.append(self.signed_term())
            node = terms[0] if len(terms) == 1 else tree.Sum(tuple(terms))
            if self.take_if("choose"):
                return tree.Call("binomial", (node, self.expression()))
            if self.take_if("over"):
                return tree.quotient(node, self.expression())
        return node

    def signed_term(self) -> tree.Node:
        if self.at("pm", "mp"):
            sign = self.take().text
            return tree.PlusMinus(self.term(), 1 if sign == "pm" else -1)
        if self.take_if("-"):
            return tree.negative(self.term())
        self.take_if("+")
        return self.term()

    def term(self) -> tree.Node:
        factors = [self.factor()]
        while True:
            if self.at("cdot", "*"):
                if self.take().text == "*" and self.at("*"):
                    raise ParseError("a power without its base")
                factors.append(self.factor())
            elif self.take_if("/"):
                factors.append(tree.Power(self.factor(), tree.MINUS_ONE))
            elif self.starts_factor(factors[-1]):
                factors.append(self.factor())
            else:
                break
        return factors[0] if len(factors) == 1 else tree.Product(tuple(factors))

    def starts_factor(self, previous: tree.Node) -> bool:
        token = self.peek()
        if token is None:
            return False
        match token.kind:
            case "number":
                if isinstance(previous, tree.Number | tree.Symbol):
                    raise ParseError("two numbers, or a letter and a number, without a sign between them")
                return True
            case "name":
                return True
            case "command":
                return token.text in _STARTING or token.text in GREEK or function_name(token) is not None
            case "begin":
                return True
            case "sign":
                return token.text in ("(", "[", "{") or (token.text == "|" and self.bars == 0)
            case _:
                return False

    def factor(self) -> tree.Node:
        if self.at("-", "+"):
            sign = self.take().text
            with self.nested():
                node = self.factor()
            return tree.negative(node) if sign == "-" else node
        return self.postfixes(self.atom())

    def postfixes(self, node: tree.Node) -> tree.Node:
        for _ in range(MAX_POSTFIXES):
            if self.at("^") or (self.at("*") and (after := self.peek(1)) is not None and after.text == "*"):
                self.index += 1 if self.at("^") else 2
                node = self.power(node)
            elif self.take_if("circ"):
                node = tree.Degrees(node)
            elif self.take_if("!"):
                if self.at("!"):
                    raise ParseError("double factorial")
                node = tree.Call("factorial", (node,))
            elif isinstance(node, tree.Symbol) and self.take_if("'"):
                node = tree.Symbol(node.name + "'")
            elif isinstance(node, tree.Symbol) and self.take_if("_"):
                node = tree.Symbol(f"{node.name}_{self.subscript()}")
            else:
                return node
        raise ParseError("too many powers, factorials or primes in a row")

    def power(self, base: tree.Node) -> tree.Node:
        if self.at("{"):
            after = self.peek(1)
            if after is not None and after.text == "circ":
                self.index += 2
                self.expect("}")
                return tree.Degrees(base)
        elif self.take_if("circ"):
            return tree.Degrees(base)
        elif self.at("'"):
            raise ParseError("a prime as a power")
        return tree.Power(base, self.argument(split=False))

    def subscript(self) -> str:
        r"""The name of a subscript: the canonical form of what it says, so that `x_{n+1}` is `x_{1+n}`."""
        token = self.peek()
        if token is not None and token.kind == "text":
            return self.take().text.strip()
        inside = self.peek(1)
        if self.at("{") and inside is not None and inside.kind in ("name", "text") and len(inside.text) > 1:
            following = self.peek(2)
            if following is not None and following.text == "}":
                self.index += 3
                return inside.text.strip()
        return _label(tree.canonical(_shallow(self.argument(split=True))))

    def argument(self, split: bool) -> tree.Node:
        if self.take_if("{"):
            node = self.expression()
            self.expect("}")
            return node
        if self.at("-", "+"):
            sign = self.take().text
            with self.nested():
                node = self.argument(split)
            return tree.negative(node) if sign == "-" else node
        token = self.peek()
        if token is not None and token.kind in ("number", "name") and split and len(token.text) > 1:
            if token.kind == "number" and not token.text.isdigit():
                raise ParseError("a decimal without braces")
            self.tokens[self.index : self.index + 1] = [Token(token.kind, letter) for letter in token.text]
        with self.nested():
            node = self.atom()
            if not split and self.take_if("^"):
                return tree.Power(node, self.argument(split=False))
        return node

    def atom(self) -> tree.Node:
        token = self.take()
        match token.kind:
            case "number":
                return mixed_number(self, number(token.text))
            case "name":
                return read_letters(self, token)
            case "command":
                return read_command(self, token)
            case "begin":
                return read_matrix(self, token.text)
            case "text" if function_name(Token("name", token.text.strip())):
                return read_letters(self, Token("name", token.text.strip()))
            case "sign" if token.text in ("(", "["):
                node = self.expression()
                self.expect(CLOSING[token.text])
                return node
            case "sign" if token.text == "{":
                if self.take_if("}"):
                    with self.nested():
                        return self.atom()
                node = self.expression()
                self.expect("}")
                return node
            case "sign" if token.text == "|":
                self.bars += 1
                node = self.expression()
                self.expect("|")
                self.bars -= 1
                return tree.Call("det" if isinstance(node, tree.Matrix) else "abs", (node,))
            case _:
                raise ParseError(f"{token.text!r} is not expected")


def _label(node: tree.Node) -> str:
    """A short name of a canonical subscript."""
    match node:
        case tree.Number(value, _):
            return str(value)
        case tree.Symbol(name) | tree.Constant(name):
            return name
        case tree.Product(factors) if all(isinstance(f, tree.Symbol | tree.Constant | tree.Number) for f in factors):
            return "".join(_label(f) for f in factors)
        case _:
            # Not its repr: there the quotes within quotes of nested subscripts double at every level.
            marks = [str(getattr(node, field)) for field in ("name", "kind", "index", "sign") if hasattr(node, field)]
            shape = len(node.rows) if isinstance(node, tree.Matrix) else ""
            return f"{type(node).__name__}{shape}{marks}({','.join(map(_label, tree.children(node)))})"


def _shallow(node: tree.Node) -> tree.Node:
    if tree.depth(node) > MAX_DEPTH:
        raise ParseError("nested too deep")
    return node
