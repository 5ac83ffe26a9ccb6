r"""LaTeX or plain mathematics to tokens.

Layout is dropped (`\left`, `\,`, `\displaystyle`, bold), dollar signs are a currency (`splitting.undelimited` has
taken off those around formulas), spellings become one (`\dfrac` is `\frac`,
`\leq` is `\le`, Unicode signs are commands), and the content of `\text{...}` is kept as one token.
"""

import re
from dataclasses import dataclass
from typing import Literal

from math_answers.spelling import spelled

MAX_TOKENS = 800
"""Most tokens of an answer."""

Kind = Literal["number", "name", "command", "text", "begin", "end", "sign", "currency"]


class ParseError(ValueError):
    """The text is not in the grammar; it can still be compared as text."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    """Digits, letters, command without its backslash, content of a text command, name of an environment, a sign, or
    the name of a currency."""
    spaced: bool = False
    """Preceded by white space."""
    upright: bool = False
    r"""A letter in `\text` or `\mathrm`: after a number it may be a unit."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYNONYMS = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom"},
    **{"leq": "le", "leqslant": "le", "leqq": "le", "geq": "ge", "geqslant": "ge", "geqq": "ge", "neq": "ne"},
    **{"times": "cdot", "ast": "cdot", "bullet": "cdot", "div": "slash", "simeq": "approx", "thickapprox": "approx"},
    **{"varnothing": "emptyset", "backslash": "setminus", "degree": "circ", "lbrace": "{", "rbrace": "}"},
    **{"lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "Vert": "|", "lVert": "|", "rVert": "|"},
    **{"lbrack": "[", "rbrack": "]", "arcosh": "arccosh", "arsinh": "arcsinh", "artanh": "arctanh"},
    **{"Rightarrow": "implies", "land": "and", "lor": "or", "wedge": "and", "vee": "or", "varphi": "phi"},
    **{"epsilon": "varepsilon", "infin": "infty", "lparen": "(", "rparen": ")"},
    **{"ldots": "dots", "cdots": "dots", "dotsc": "dots", "dotsb": "dots"},
}
_LAYOUT = words(
    """
    left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle textstyle
    scriptstyle limits nolimits quad qquad enspace thinspace space rm bf it sf mathbf mathit mathcal mathsf
    mathnormal boldsymbol bm vec overrightarrow underline mathop mathord boxed
    fbox hfill hline newline noindent allowbreak nobreak negthinspace medspace thickspace ensuremath
    """
)
_WITH_ARGUMENT = words(
    """
    phantom hspace vspace label color tag hphantom vphantom textcolor
    """
)
_TEXT = words(
    """
    text textbf textit textrm texttt textsf textnormal textup mbox hbox mathrm operatorname rm emph mathtt
    """
)
_SPACES = frozenset(",;:! >\t\n")
CURRENCIES = {
    **{"$": "dollar", "¢": "cent", "€": "euro", "£": "gbp", "¥": "yen or yuan", "₹": "inr", "₩": "won", "₽": "ruble"},
    **{"₺": "lira", "₪": "shekel", "฿": "baht", "₫": "dong", "₱": "peso", "₴": "hryvnia"},
}
"""The sign of a currency, and the unit that it is (`units.py`)."""
_CURRENCY_CODES = {
    **{"USD": "dollar", "EUR": "euro", "GBP": "gbp", "INR": "inr", "JPY": "yen", "CNY": "yuan", "RMB": "yuan"},
    **{"CAD": "cad", "AUD": "aud", "CHF": "chf"},
}
_CURRENCY_COMMANDS = {
    **{"textdollar": "$", "textcent": "¢", "cent": "¢", "euro": "€", "texteuro": "€", "pounds": "£"},
    **{"textsterling": "£", "yen": "¥", "textyen": "¥"},
}

_TOKEN = re.compile(
    r"""(?P<space>\s+|~)
      | (?P<number>(?:[0-9]+\.[0-9]+[eE][+-]?[0-9]{1,3}|[0-9]+E[+-]?[0-9]{1,3}|[0-9]+e[+-]?[0-9]{2,3})(?![0-9])
                   |[0-9]+(?:\.[0-9]+)?|\.[0-9]+)
      | (?P<name>[A-Za-z]+)
      | \\(?P<command>[A-Za-z]+)\*?
      | \\(?P<escaped>.)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> list[Token]:
    r"""The tokens of an answer.

    >>> [token.text for token in tokenize(r"\left(\dfrac{1}{2},\ 3\,\text{cm}\right)")]
    ['(', 'frac', '{', '1', '}', '{', '2', '}', ',', '3', 'cm', ')']
    """
    text = spelled(text)
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None  # the last alternative takes any character
        position = found.end()
        kind, body = found.lastgroup, found[found.lastgroup or 0]
        if kind == "space":
            spaced = True
            continue
        if kind == "escaped" and body in _SPACES:
            spaced = True
            continue
        if kind == "command":
            token, position = _command(text, body, position, spaced)
            if token is None:
                spaced = True
                continue
        elif kind in ("escaped", "sign") and body in CURRENCIES:
            token = Token("currency", CURRENCIES[body], spaced)
        elif kind == "escaped":
            token = _escaped(body, spaced)
        elif kind == "sign":
            token = Token("sign", body, spaced)
        elif kind == "name" and body in _CURRENCY_CODES:
            token = Token("currency", _CURRENCY_CODES[body], spaced)
        else:
            token = Token("number" if kind == "number" else "name", body, spaced)
        tokens.append(token)
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too long")
    return tokens


def _escaped(body: str, spaced: bool) -> Token:
    match body:
        case "{" | "}":
            return Token("sign", "\\" + body, spaced)
        case "|":
            return Token("sign", "|", spaced)
        case "%" | "#" | "&" | "_":
            return Token("sign", body, spaced)
        case "\\":
            return Token("sign", "\\\\", spaced)
        case "(" | ")" | "[" | "]":
            # \( and \[ delimit mathematics: the caller has stripped those around the whole answer
            raise ParseError("delimiters inside")
        case _:
            raise ParseError(f"unknown escape \\{body[:1]}")


def _command(text: str, name: str, position: int, spaced: bool) -> tuple[Token | None, int]:
    """The token of `\\name` that ends at `position`, None if it is layout; and where to read on."""
    name = _SYNONYMS.get(name, name)
    if name in ("left", "right") and text[position : position + 1] == ".":
        return None, position + 1
    if name in _TEXT and text[position:].lstrip()[:1] == "{":
        content, position = _argument(text, position)
        content = re.sub(r"\\[,;:! ]|~|\\(?=[$%])", " ", content)
        letters = content.strip()
        if currency := CURRENCIES.get(letters.removeprefix("\\")) or _CURRENCY_CODES.get(letters):
            return Token("currency", currency, spaced), position
        if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", letters):
            return Token("number", letters, spaced), position
        if re.fullmatch(r"[A-Za-z]", letters) or (name == "operatorname" and letters.isalpha()):
            return Token("name", letters, spaced, upright=len(letters) == 1), position
        return Token("text", content, spaced), position
    if name in _CURRENCY_COMMANDS:
        return Token("currency", CURRENCIES[_CURRENCY_COMMANDS[name]], spaced), position
    if name in _LAYOUT:
        return None, position
    if name in _WITH_ARGUMENT:
        _, position = _argument(text, position)
        return None, position
    if name in ("begin", "end"):
        environment, position = _argument(text, position)
        environment = environment.strip().rstrip("*")
        if name == "begin" and environment == "array" and text[position:].lstrip()[:1] == "{":
            _, position = _argument(text, position)
        return Token("begin" if name == "begin" else "end", environment, spaced), position
    if name == "mathbb":
        content, position = _argument(text, position)
        return Token("command", "mathbb" + content.strip(), spaced), position
    if name in ("{", "}"):
        return Token("sign", "\\" + name, spaced), position
    if name in ("[", "]", "(", ")", "|"):
        return Token("sign", name, spaced), position
    if name == "slash":
        return Token("sign", "/", spaced), position
    if name in ("lt", "gt"):
        return Token("sign", "<" if name == "lt" else ">", spaced), position
    return Token("command", name, spaced), position


def _argument(text: str, position: int) -> tuple[str, int]:
    """The content of the braces that open after `position` (or the one character there), and the position after it."""
    while position < len(text) and text[position].isspace():
        position += 1
    if text[position : position + 1] != "{":
        return text[position : position + 1], position + 1
    depth = 0
    for index in range(position, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return text[position + 1 : index], index + 1
    raise ParseError("unbalanced braces")
