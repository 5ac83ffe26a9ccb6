r"""Trees built from LaTeX commands: fractions, roots, binomials, series, matrices; and numbers."""

from fractions import Fraction

from math_answers import expression as tree
from math_answers.calls import function_name, read_function
from math_answers.reader import Reader
from math_answers.tokens import ParseError, Token
from math_answers.vocabulary import GREEK, WORDS


def read_command(reader: Reader, token: Token) -> tree.Node:
    name = token.text
    if name in GREEK:
        return tree.Symbol(name)
    function = function_name(token)
    if function is not None:
        return read_function(reader, function)
    match name:
        case "pi" | "infty":
            return WORDS[name]
        case "imath":
            return tree.Constant("i")
        case "frac":
            refuse_derivative(reader)
            numerator = reader.argument(split=True)
            return tree.quotient(numerator, reader.argument(split=True))
        case "binom":
            above = reader.argument(split=True)
            return tree.Call("binomial", (above, reader.argument(split=True)))
        case "sqrt":
            root = Fraction(2)
            if reader.at("["):
                reader.take()
                degree = reader.expression()
                reader.expect("]")
                if not isinstance(degree, tree.Number) or degree.value == 0:
                    return tree.Power(reader.argument(split=False), tree.Power(degree, tree.MINUS_ONE))
                root = degree.value
            return tree.Power(reader.argument(split=False), tree.Number(1 / root))
        case "overline" | "bar" | "hat" | "tilde" | "widehat":
            node = reader.argument(split=True)
            return tree.Symbol(f"{name} {node.name}") if isinstance(node, tree.Symbol) else node
        case "lfloor" | "lceil":
            node = reader.expression()
            reader.expect("rfloor" if name == "lfloor" else "rceil")
            return tree.Call("floor" if name == "lfloor" else "ceil", (node,))
        case "sum" | "prod":
            return read_series(reader, "sum" if name == "sum" else "product")
        case _:
            raise ParseError(f"the command {name!r}")


def refuse_derivative(reader: Reader) -> None:
    r"""`\frac{d}{dx}` and `\frac{dy}{dx}` are derivatives, not fractions."""
    first, second = reader.peek(), reader.peek(1)
    if first is not None and first.text == "{" and second is not None and second.text.startswith(("d", "partial")):
        for token in reader.tokens[reader.index + 2 : reader.index + 8]:
            if token.kind == "name" and token.text.startswith("d"):
                raise ParseError("a derivative")
        if second.text == "partial":
            raise ParseError("a derivative")


def read_series(reader: Reader, kind: str) -> tree.Node:
    lower: tree.Node | None = None
    index = ""
    last: tree.Node | None = None
    while reader.at("_", "^"):
        if reader.take().text == "^":
            last = reader.argument(split=True)
            continue
        reader.expect("{")
        variable = reader.atom()
        if not isinstance(variable, tree.Symbol) and variable != tree.Constant("i"):
            raise ParseError("an index that is not a letter")
        index = "i" if isinstance(variable, tree.Constant) else variable.name
        reader.expect("=")
        lower = reader.expression()
        reader.expect("}")
    if lower is None or last is None:
        raise ParseError("a sum without bounds")
    body = reader.term()
    return tree.Series("sum" if kind == "sum" else "product", index, lower, last, body)


def read_matrix(reader: Reader, environment: str) -> tree.Node:
    """The rows up to the matching end; `vmatrix` is a determinant."""
    if environment not in ("pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "array", "smallmatrix"):
        raise ParseError(f"the environment {environment!r}")
    rows: list[list[tree.Node]] = [[]]
    while True:
        token = reader.peek()
        if token is None:
            raise ParseError("a matrix without an end")
        if token.kind == "end":
            reader.take()
            break
        if token.text == "\\\\":
            reader.take()
            rows.append([])
        elif token.text == "&" and rows[-1]:
            reader.take()
            rows[-1].append(reader.expression())
        elif not rows[-1]:
            rows[-1].append(reader.expression())
        else:
            raise ParseError("a matrix entry")
    if not rows[-1]:
        rows.pop()
    if not rows or len({len(row) for row in rows}) != 1:
        raise ParseError("rows of different lengths")
    node = tree.Matrix(tuple(map(tuple, rows)))
    return tree.Call("det", (node,)) if environment == "vmatrix" else node
