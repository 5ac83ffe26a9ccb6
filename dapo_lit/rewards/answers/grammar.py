r"""Tokens of one scalar expression to its tree, by recursive descent.

    expression  term (("+" | "-" | \pm | \mp) term)*
    term        factor ((\cdot | "*" | "/" | nothing) factor)*
    factor      "-" factor | atom ("^" argument | "_" subscript | "!" | ^\circ)*
    atom        number | letter | \frac.. | \sqrt.. | \binom.. | function argument | \sum.. | matrix | brackets

Plain spellings are read too (`sqrt(2)`, `2*x`, `x**2`, `pi`, `ln(x)`). What is not in the grammar raises ParseError.
Integrals, limits and derivatives are left out on purpose: an answer that restates the question is no answer.
"""

from fractions import Fraction

from dapo_lit.rewards.answers.cursor import Cursor
from dapo_lit.rewards.answers.expression import (
    MINUS_ONE,
    Call,
    Constant,
    Degrees,
    Matrix,
    Node,
    Number,
    PlusMinus,
    Power,
    Product,
    Series,
    Sum,
    Symbol,
    canonical,
    children,
    negative,
    quotient,
    rebuilt,
)
from dapo_lit.rewards.answers.tokens import ParseError, Token
from dapo_lit.rewards.answers.vocabulary import (
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
from dapo_lit.rewards.numbers import DOUBLE_DIGITS, MAX_DIGITS, MAX_EXPONENT


def parse_expression(tokens: list[Token]) -> Node:
    """The tree of a whole token list; raises ParseError if they are not one scalar expression."""
    parser = _Parser(tokens)
    node = parser.expression()
    if parser.index < len(parser.tokens):
        raise ParseError(f"{parser.tokens[parser.index].text!r} is not expected")
    return node


def number(text: str) -> Number:
    if len(text) > MAX_DIGITS:
        raise ParseError("too many digits")
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise ParseError("too large an exponent")
    significant = mantissa.replace(".", "").lstrip("0")
    return Number(Fraction(text), "." in text and len(significant) >= DOUBLE_DIGITS)


class _Parser(Cursor):
    def __init__(self, tokens: list[Token]):
        super().__init__(tokens)
        self.bars = 0
        """How many absolute values are open: inside, a bar closes."""

    def expression(self) -> Node:
        with self.nested():
            terms = [self.signed_term()]
            while self.at("+", "-", "pm", "mp"):
                terms.append(self.signed_term())
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def signed_term(self) -> Node:
        if self.at("pm", "mp"):
            sign = self.take().text
            return PlusMinus(self.term(), 1 if sign == "pm" else -1)
        if self.at("+"):
            self.take()
            return self.term()
        if self.at("-"):
            self.take()
            return negative(self.term())
        return self.term()

    def term(self) -> Node:
        factors = [self.factor()]
        while True:
            if self.at("cdot", "*"):
                if self.take().text == "*" and self.at("*"):
                    raise ParseError("a power without its base")
                factors.append(self.factor())
            elif self.at("/"):
                self.take()
                factors.append(Power(self.factor(), MINUS_ONE))
            elif self.starts_factor(factors[-1]):
                factors.append(self.factor())
            else:
                break
        return factors[0] if len(factors) == 1 else Product(tuple(factors))

    def starts_factor(self, previous: Node) -> bool:
        """Whether the next token begins a factor that is multiplied without a sign."""
        token = self.peek()
        if token is None:
            return False
        match token.kind:
            case "number":
                if isinstance(previous, Number | Symbol):
                    raise ParseError("two numbers, or a letter and a number, without a sign between them")
                return True
            case "name":
                return True
            case "command":
                return token.text in {
                    "overline",
                    "bar",
                    "hat",
                    "frac",
                    "sqrt",
                    "binom",
                    "pi",
                    "infty",
                    "sum",
                    "prod",
                    "imath",
                } or (token.text in GREEK or self.function_name(token) is not None)
            case "begin":
                return True
            case "sign":
                return token.text in ("(", "[", "{") or (token.text == "|" and self.bars == 0)
            case _:
                return False

    def factor(self) -> Node:
        if self.at("-", "+"):
            sign = self.take().text
            with self.nested():
                node = self.factor()
            return negative(node) if sign == "-" else node
        return self.postfixes(self.atom())

    def postfixes(self, node: Node) -> Node:
        while True:
            if self.at("^") or (self.at("*") and (after := self.peek(1)) is not None and after.text == "*"):
                self.index += 1 if self.at("^") else 2
                node = self.power(node)
            elif self.at("circ"):
                self.take()
                node = Degrees(node)
            elif self.at("!"):
                self.take()
                if self.at("!"):
                    raise ParseError("double factorial")
                node = Call("factorial", (node,))
            elif self.at("'") and isinstance(node, Symbol):
                self.take()
                node = Symbol(node.name + "'")
            elif self.at("_") and isinstance(node, Symbol):
                self.take()
                node = Symbol(f"{node.name}_{self.subscript()}")
            else:
                return node

    def power(self, base: Node) -> Node:
        if self.at("{"):
            after = self.peek(1)
            if after is not None and after.text == "circ":
                self.index += 2
                self.expect("}")
                return Degrees(base)
        elif self.at("circ"):
            self.take()
            return Degrees(base)
        elif self.at("'"):
            raise ParseError("a prime as a power")
        return Power(base, self.argument(split=False))

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
        return _label(canonical(self.argument(split=True)))

    def argument(self, split: bool) -> Node:
        r"""What a command applies to: braces, or one token (with `split` one digit of a number, as in `\frac12`)."""
        if self.at("{"):
            self.take()
            node = self.expression()
            self.expect("}")
            return node
        if self.at("-", "+"):
            sign = self.take().text
            with self.nested():
                node = self.argument(split)
            return negative(node) if sign == "-" else node
        token = self.peek()
        if token is not None and token.kind in ("number", "name") and split and len(token.text) > 1:
            if token.kind == "number" and not token.text.isdigit():
                raise ParseError("a decimal without braces")
            self.tokens[self.index : self.index + 1] = [Token(token.kind, letter) for letter in token.text]
        with self.nested():
            node = self.atom()
            if self.at("^") and not split:
                self.take()
                return Power(node, self.argument(split=False))
        return node

    def atom(self) -> Node:
        token = self.take()
        match token.kind:
            case "number":
                return self.mixed(number(token.text))
            case "name":
                return self.name(token)
            case "command":
                return self.command(token)
            case "begin":
                return self.matrix(token.text)
            case "text" if self.function_name(Token("name", token.text.strip())):
                return self.name(Token("name", token.text.strip()))
            case "sign" if token.text in ("(", "["):
                node = self.expression()
                self.expect(CLOSING[token.text])
                return node
            case "sign" if token.text == "{":
                if self.at("}"):
                    self.take()
                    return self.atom()
                node = self.expression()
                if self.at("choose"):
                    self.take()
                    node = Call("binomial", (node, self.expression()))
                self.expect("}")
                return node
            case "sign" if token.text == "|":
                self.bars += 1
                node = self.expression()
                self.expect("|")
                self.bars -= 1
                return Call("det" if isinstance(node, Matrix) else "abs", (node,))
            case _:
                raise ParseError(f"{token.text!r} is not expected")

    def mixed(self, whole: Number) -> Node:
        r"""`1 1/2` and `1\frac{1}{2}` are sums; any other fraction after a number is a factor."""
        if whole.value.denominator != 1:
            return whole
        ahead = self.tokens[self.index : self.index + 7]
        kinds = [token.kind for token in ahead]
        texts = [token.text for token in ahead]
        if kinds[:3] == ["number", "sign", "number"] and texts[1] == "/" and ahead[0].spaced:
            part = Fraction(1, 1) if "." in texts[0] + texts[2] else _proper(texts[0], texts[2])
            length = 3
        elif (
            texts[:2] == ["frac", "{"]
            and texts[3:5] == ["}", "{"]
            and texts[6:7] == ["}"]
            and kinds[2:6:3] == ["number"] * 2
        ):
            part = _proper(texts[2], texts[5])
            length = 7
        elif texts[:1] == ["frac"] and kinds[:2] == ["command", "number"] and len(texts[1]) == 2:
            part = _proper(*texts[1])
            length = 2
        else:
            return whole
        if part >= 1:
            return whole
        self.index += length
        return Number(whole.value + part)

    def name(self, token: Token) -> Node:
        """A run of letters: a function, a word such as `pi`, or a product of symbols."""
        function = self.function_name(token)
        if function is not None:
            return self.function(function)
        if token.text in WORDS:
            return WORDS[token.text]
        if token.text in GREEK:
            return Symbol(token.text)
        if token.text == "sum" or len(token.text) > 3:
            raise ParseError(f"the word {token.text!r}")
        if len(token.text) > 1:
            self.tokens[self.index : self.index] = [Token("name", letter) for letter in token.text[1:]]
        letter = token.text[0]
        following = self.peek()
        if letter in APPLIED and len(token.text) == 1:
            primes = ""
            while self.at("'"):
                primes += self.take().text
            if self.at("("):
                self.take()
                return Call(letter + primes, self.arguments(")"))
            if primes:
                return Symbol(letter + primes)
        if len(token.text) == 1 and following is not None and following.kind == "number" and not following.spaced:
            self.take()
            return Symbol(f"{letter}_{following.text}")
        if letter in ("e", "i") and not self.at("_"):
            return Constant("e") if letter == "e" else Constant("i")
        return Symbol(letter)

    def function_name(self, token: Token) -> str | None:
        if token.kind not in ("name", "command"):
            return None
        name = SPELLINGS.get(token.text, token.text)
        return (
            name
            if name in FUNCTIONS or (name in BRACKETED and token.text not in ("sqrt", "binom"))
            else ("sqrt" if token.kind == "name" and name == "sqrt" else None)
        )

    def function(self, name: str) -> Node:
        if name == "sqrt":
            return Power(self.argument(split=False), HALF)
        if name in BRACKETED:
            return self.bracketed(name)
        base: Node | None = None
        exponent: Node | None = None
        while self.at("^", "_"):
            if self.take().text == "^":
                exponent = self.argument(split=False)
            elif name == "log":
                base = self.argument(split=True) if not self.number_ahead() else self.atom()
            else:
                raise ParseError(f"a subscript of {name}")
        if exponent == MINUS_ONE and name in INVERSES:
            name, exponent = INVERSES[name], None
        argument = self.function_argument()
        if name == "lg":
            name, base = "log", Number(Fraction(10))
        node = _call(name, argument, base)
        return node if exponent is None else Power(node, exponent)

    def number_ahead(self) -> bool:
        token = self.peek()
        return token is not None and token.kind == "number"

    def function_argument(self) -> Node:
        r"""Brackets if they open; else the factors that follow, up to a sign or another function: `\sin 2x \cos y`."""
        if self.at("(", "["):
            self.take()
            closing = CLOSING[self.tokens[self.index - 1].text]
            node = self.expression()
            self.expect(closing)
            return node
        if self.at("{"):
            return self.argument(split=False)
        with self.nested():
            return self.bare_argument()

    def bare_argument(self) -> Node:
        if self.at("-"):
            self.take()
            return negative(self.function_argument())
        factors = [self.factor()]
        while self.starts_factor(factors[-1]):
            token = self.peek()
            if token is not None and (self.function_name(token) or (token.kind == "sign" and token.text in "([")):
                break
            factors.append(self.factor())
        return factors[0] if len(factors) == 1 else Product(tuple(factors))

    def bracketed(self, name: str) -> Node:
        if name == "cbrt" and self.at("{"):
            return Power(self.argument(split=False), Number(Fraction(1, 3)))
        closing = {"(": ")", "{": "}", "\\{": "\\}", "[": "]"}.get(self.take().text)
        if closing is None:
            raise ParseError(f"{name} without brackets")
        arguments = self.arguments(closing)
        if BRACKETED[name] and len(arguments) != BRACKETED[name]:
            raise ParseError(f"{name} of {len(arguments)} arguments")
        if name == "sqrt" or name == "cbrt":
            return Power(arguments[0], HALF if name == "sqrt" else Number(Fraction(1, 3)))
        return Call(name, arguments)

    def arguments(self, closing: str) -> tuple[Node, ...]:
        nodes = [self.expression()]
        while self.at(","):
            self.take()
            nodes.append(self.expression())
        self.expect(closing)
        return tuple(nodes)

    def command(self, token: Token) -> Node:
        name = token.text
        if name in GREEK:
            return Symbol(name)
        function = self.function_name(token)
        if function is not None:
            return self.function(function)
        match name:
            case "pi" | "infty":
                return WORDS[name]
            case "imath":
                return Constant("i")
            case "frac":
                self.refuse_derivative()
                numerator = self.argument(split=True)
                return quotient(numerator, self.argument(split=True))
            case "binom":
                above = self.argument(split=True)
                return Call("binomial", (above, self.argument(split=True)))
            case "sqrt":
                root = Fraction(2)
                if self.at("["):
                    self.take()
                    degree = self.expression()
                    self.expect("]")
                    if not isinstance(degree, Number) or degree.value == 0:
                        return Power(self.argument(split=False), Power(degree, MINUS_ONE))
                    root = degree.value
                return Power(self.argument(split=False), Number(1 / root))
            case "overline" | "bar" | "hat" | "tilde" | "widehat":
                node = self.argument(split=True)
                return Symbol(f"{name} {node.name}") if isinstance(node, Symbol) else node
            case "lfloor" | "lceil":
                node = self.expression()
                self.expect("rfloor" if name == "lfloor" else "rceil")
                return Call("floor" if name == "lfloor" else "ceil", (node,))
            case "sum" | "prod":
                return self.series("sum" if name == "sum" else "product")
            case _:
                raise ParseError(f"the command {name!r}")

    def refuse_derivative(self) -> None:
        r"""`\frac{d}{dx}` and `\frac{dy}{dx}` are derivatives, not fractions."""
        first, second = self.peek(), self.peek(1)
        if first is not None and first.text == "{" and second is not None and second.text.startswith(("d", "partial")):
            for token in self.tokens[self.index + 2 : self.index + 8]:
                if token.kind == "name" and token.text.startswith("d"):
                    raise ParseError("a derivative")
            if second.text == "partial":
                raise ParseError("a derivative")

    def series(self, kind: str) -> Node:
        lower: Node | None = None
        index = ""
        last: Node | None = None
        while self.at("_", "^"):
            if self.take().text == "^":
                last = self.argument(split=True)
                continue
            self.expect("{")
            variable = self.atom()
            if not isinstance(variable, Symbol) and variable != Constant("i"):
                raise ParseError("an index that is no letter")
            index = "i" if isinstance(variable, Constant) else variable.name
            self.expect("=")
            lower = self.expression()
            self.expect("}")
        if lower is None or last is None:
            raise ParseError("a sum without bounds")
        body = self.term()
        if index == "i":
            body = _index_i(body)
        return Series("sum" if kind == "sum" else "product", index, lower, last, body)

    def matrix(self, environment: str) -> Node:
        """The rows up to the matching end; `vmatrix` is a determinant."""
        if environment not in ("pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "array", "smallmatrix"):
            raise ParseError(f"the environment {environment!r}")
        rows: list[list[Node]] = [[]]
        while True:
            token = self.peek()
            if token is None:
                raise ParseError("a matrix without an end")
            if token.kind == "end":
                self.take()
                break
            if token.text == "\\\\":
                self.take()
                rows.append([])
            elif token.text == "&" and rows[-1]:
                self.take()
                rows[-1].append(self.expression())
            elif not rows[-1]:
                rows[-1].append(self.expression())
            else:
                raise ParseError("a matrix entry")
        if not rows[-1]:
            rows.pop()
        if not rows or len({len(row) for row in rows}) != 1:
            raise ParseError("rows of different lengths")
        node = Matrix(tuple(map(tuple, rows)))
        return Call("det", (node,)) if environment == "vmatrix" else node


def _proper(numerator: str, denominator: str) -> Fraction:
    """The fraction of two digit strings, 1 (so: not proper) if they are none."""
    if not (numerator.isdigit() and denominator.isdigit()) or len(numerator + denominator) > 40 or not int(denominator):
        return Fraction(1)
    return Fraction(int(numerator), int(denominator))


def _call(name: str, argument: Node, base: Node | None) -> Node:
    match name:
        case "exp":
            return Power(Constant("e"), argument)
        case "log" if base is not None:
            return quotient(Call("ln", (argument,)), Call("ln", (base,)))
        case _:
            return Call(name, (argument,))


def _index_i(node: Node) -> Node:
    """`i` as an index of summation is a symbol, not the imaginary unit."""
    if node == Constant("i"):
        return Symbol("i")
    return rebuilt(node, tuple(_index_i(part) for part in children(node)))


def _label(node: Node) -> str:
    """A short name of a canonical subscript."""
    match node:
        case Number(value, _):
            return str(value)
        case Symbol(name) | Constant(name):
            return name
        case Product(factors) if all(isinstance(f, Symbol | Constant | Number) for f in factors):
            return "".join(_label(f) for f in factors)
        case _:
            return repr(node)
