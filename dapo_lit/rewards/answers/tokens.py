r"""LaTeX or plain mathematics to tokens.

Layout is dropped (`\left`, `\,`, `\displaystyle`, dollar signs, bold), spellings become one (`\dfrac` is `\frac`,
`\leq` is `\le`, Unicode signs are commands), and the content of `\text{...}` is kept as one token.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from dapo_lit.rewards.numbers import ascii_digits

MAX_TOKENS = 800
"""More tokens than this are no answer."""

Kind = Literal["number", "name", "command", "text", "begin", "end", "sign"]


class ParseError(ValueError):
    """The text is not in the grammar; it can still be compared as text."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    """Digits, letters, command without its backslash, content of a text command, name of an environment, or a sign."""
    spaced: bool = False
    """White space stands before it."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNICODE = {
    **{"−": "-", "–": "-", "—": "-", "×": r"\cdot ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/"},
    **{"⁄": "/", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx "},
    **{"∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
    **{"±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "ℝ": r"\mathbb{R}", "′": "'", "’": "'", "θ": r"\theta "},
    **{
        "α": r"\alpha ",
        "β": r"\beta ",
        "γ": r"\gamma ",
        "λ": r"\lambda ",
        "μ": r"\mu ",
        "φ": r"\phi ",
        "ω": r"\omega ",
    },
    **{"，": ",", "。": ".", "：": ":", "（": "(", "）": ")", "％": "%", "\u00a0": " ", "\u2009": " ", "\u202f": " "},
    **{"⟨": r"\langle ", "⟩": r"\rangle ", "∖": r"\setminus ", "→": r"\to ", "\ufeff": "", "\u200b": ""},
}
_UNICODE_SIGN = re.compile("|".join(map(re.escape, _UNICODE)))
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_VULGAR = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅕": "1/5", "⅙": "1/6", "⅛": "1/8"}
_VULGAR_SIGN = re.compile("([0-9]?)([" + "".join(_VULGAR) + "])")

_SYNONYMS = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom"},
    **{"leq": "le", "leqslant": "le", "leqq": "le", "geq": "ge", "geqslant": "ge", "geqq": "ge", "neq": "ne"},
    **{"times": "cdot", "ast": "cdot", "bullet": "cdot", "div": "slash", "simeq": "approx", "thickapprox": "approx"},
    **{"varnothing": "emptyset", "backslash": "setminus", "degree": "circ", "lbrace": "{", "rbrace": "}"},
    **{"lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "Vert": "|", "lVert": "|", "rVert": "|"},
    **{"lbrack": "[", "rbrack": "]", "arcosh": "arccosh", "arsinh": "arcsinh", "artanh": "arctanh"},
    **{"Rightarrow": "implies", "land": "and", "lor": "or", "wedge": "and", "vee": "or", "varphi": "phi"},
    **{"epsilon": "varepsilon", "infin": "infty", "lparen": "(", "rparen": ")"},
}
_LAYOUT = words(
    """
    left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle textstyle
    scriptstyle limits nolimits quad qquad enspace thinspace space rm bf it sf mathbf mathit mathcal mathsf
    mathnormal boldsymbol bm vec overrightarrow underline mathop mathord boxed
    fbox hfill hline newline noindent allowbreak nobreak negthinspace medspace thickspace ensuremath pounds euro
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
_CURRENCY = "$€£¥₹₩₽"

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
# Digit groups that are thousands wherever they stand: 1{,}234  1,\!234  1\,234  1 234
_GROUPS = re.compile(r"(?<![0-9.])([0-9]{1,3})((?:(?:\{,\}|,?\\[!,]\s*|\ )[0-9]{3})+)(?![0-9]|\s*/)")
_GROUP_MARK = re.compile(r"[^0-9]")
_REPEATING = re.compile(r"([0-9]*\.[0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?")


def tokenize(text: str) -> list[Token]:
    r"""The tokens of an answer.

    >>> [token.text for token in tokenize(r"$\left(\dfrac{1}{2},\ 3\,\text{cm}\right)$")]
    ['(', 'frac', '{', '1', '}', '{', '2', '}', ',', '3', 'cm', ')']
    """
    text = _spelled(text)
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None  # the last alternative takes any character
        position = found.end()
        kind, body = found.lastgroup, found[found.lastgroup or 0]
        if kind == "space" or (kind == "sign" and body in _CURRENCY) or (kind == "escaped" and body in _CURRENCY):
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
        elif kind == "escaped":
            token = _escaped(body, spaced)
        elif kind == "sign":
            token = Token("sign", body, spaced)
        else:
            token = Token("number" if kind == "number" else "name", body, spaced)
        tokens.append(token)
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too long")
    return tokens


def _spelled(text: str) -> str:
    """ASCII spellings of Unicode signs, and digit groups joined."""
    if not text.isascii():
        text = ascii_digits(text)
        text = _VULGAR_SIGN.sub(lambda m: m[1] + " " * bool(m[1]) + _VULGAR[m[2]], text)
        text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
        text = _UNICODE_SIGN.sub(lambda m: _UNICODE[m[0]], text)
        text = unicodedata.normalize("NFKC", text)
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)  # a backslash doubled by an escaped source
    text = _REPEATING.sub(_repeating, text)
    return _GROUPS.sub(lambda m: m[1] + _GROUP_MARK.sub("", m[2]), text)


def _repeating(found: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as a fraction: (16 - 1) / 90."""
    whole, _, fixed = found[1].partition(".")
    period = found[2]
    if len(period) > 40 or len(fixed) > 40 or len(whole) > 40:
        return found[0]
    scale = 10 ** len(fixed)
    numerator = int((whole or "0") + fixed + period) - int((whole or "0") + fixed)
    return f"({numerator}/{scale * (10 ** len(period) - 1)})"


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
        content = re.sub(r"\\[,;:! ]|~|\$", " ", content)
        letters = content.strip()
        if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", letters):
            return Token("number", letters, spaced), position
        if re.fullmatch(r"[A-Za-z]", letters) or (name == "operatorname" and letters.isalpha()):
            return Token("name", letters, spaced), position
        return Token("text", content, spaced), position
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
