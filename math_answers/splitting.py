"""Splits an answer into pieces: its ends, thousands, separators and relation signs outside all brackets."""

import re
from collections.abc import Callable
from fractions import Fraction

from math_answers.marks import unmarked
from math_answers.tokens import Token
from math_answers.units import unit_length

OPEN = {"(": "(", "[": "[", "\\{": "{", "langle": "<"}
CLOSE = {")": ")", "]": "]", "\\}": "}", "rangle": ">"}
_EQUALITIES = ("=", "approx", "equiv")
_RELATIONS = frozenset(("=", "<", ">", "le", "ge", "ne", "approx", "equiv", "in", "notin"))
_COMPOSED = {
    ("<", "="): "le",
    (">", "="): "ge",
    ("!", "="): "ne",
    (":", "="): "=",
    ("=", "="): "=",
    ("~", "="): "approx",
}
_NEGATED = {"=": "ne", "approx": "ne", "equiv": "ne", "in": "notin", "<": "ge", ">": "le", "le": ">", "ge": "<"}
"""By what follows `\\not`."""
# A dollar sign delimits a formula as in Markdown: no space inside it, no digit after the closing one. So `$5, $6` are
# two amounts of money, and `$5$, $6$` two formulas.
FORMULA = re.compile(
    r"""(?<!\\)\$\$(?P<display>(?:\\.|[^$\\])+?)\$\$
      | (?<![\\$])\$(?![\s$])(?P<inline>(?:\\.|[^$\\])+?)(?<!\s)\$(?![0-9$])
      | (?<!\\)\\\((?P<parentheses>.+?)(?<!\\)\\\) | (?<!\\)\\\[(?P<brackets>.+?)(?<!\\)\\\]""",
    re.DOTALL | re.VERBOSE,
)
_WHOLEFORMULA = re.compile(r"(\${1,2})((?:\\.|[^$\\])+)\1", re.DOTALL)
# `\text{10 cm}` is `10 cm`; `\text{(C)}` and `\text{even}` have no digit and stay
_WHOLE_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox)\s*\{([^{}]*[0-9][^{}]*)\}")
_DASHES = re.compile("[–—]")
_AMOUNT = r"[$€£¥]?([0-9]+(?:[.,][0-9]+)*)"
_HYPHENED = re.compile(rf"{_AMOUNT}-{_AMOUNT}(?:\s*[%°][A-Za-z ]*|\s+(?!pi\b)[A-Za-z][A-Za-z ]+)?")
RANGE = "–"
"""The sign of a range, `10–20`; a minus sign is `-`."""
_OUTWARD = re.compile(r"([\[\]])([^\[\](){}|]+[,;][^\[\](){}|]+)([\[\]])")


def undelimited(text: str) -> str:
    r"""Without marks around the whole and without the delimiters of formulas, `$ $`, `\( \)` and `\[ \]`.

    A dash between numbers is a range in text, and a minus in a formula; `–` is left for ranges, `-` for minus signs.
    """
    formulas = 0

    def without_dashes(formula: str) -> str:
        nonlocal formulas
        formulas += 1
        return _DASHES.sub("-", formula)

    body, before = text, ""
    while body != before:
        before = body
        body = unmarked(body).rstrip("\\").rstrip()
        if not body.endswith(".."):
            body = body.removesuffix(".").rstrip()
        if formula := _WHOLEFORMULA.fullmatch(body):
            body = without_dashes(formula[2])
        elif written := _WHOLE_TEXT.fullmatch(body):
            body = written[1]
    body = FORMULA.sub(lambda formula: f" {without_dashes(formula[formula.lastgroup or 0])} ", body)
    if "\\" in body:  # half of a pair
        body = re.sub(r"(?<!\\)\\[()]|(?<!\\)\\[\[\]]", " ", body)
    if not formulas and (hyphened := _HYPHENED.fullmatch(body)) and _ascending(hyphened[1], hyphened[2]):
        body = body.replace("-", RANGE, 1)
    outward = _OUTWARD.fullmatch(body)
    if outward and outward[1] + outward[3] != "[]":  # ]0,1[ is (0,1)
        body = ("[" if outward[1] == "[" else "(") + outward[2] + ("]" if outward[3] == "]" else ")")
    return body


def _ascending(low: str, high: str) -> bool:
    """True for `10` and `20`, but not for `5` and `3`: nobody writes the range 5-3, and few the difference 10-20."""
    low, high = low.replace(",", ""), high.replace(",", "")
    return low.count(".") < 2 and high.count(".") < 2 and Fraction(low) < Fraction(high)


def composed(tokens: list[Token]) -> list[Token]:
    """Two-character relations and negated ones as one token."""
    joined: list[Token] = []
    for token in tokens:
        if joined and joined[-1].text == "not" and joined[-1].kind == "command" and token.text in _NEGATED:
            joined[-1] = Token("sign", _NEGATED[token.text], joined[-1].spaced)
            continue
        if token.text == "-" and joined and joined[-1].text in ("mathbbR", "R") and joined[-1].kind == "command":
            token = Token("command", "setminus", token.spaced)
        if joined and token.kind == "sign" and not token.spaced and joined[-1].kind == "sign":
            sign = _COMPOSED.get((joined[-1].text, token.text))
            if sign:
                joined[-1] = Token("sign", sign, joined[-1].spaced)
                continue
        joined.append(token)
    return joined


def without_ends(tokens: list[Token]) -> list[Token]:
    """Without punctuation at the end and empty text at either end."""
    while tokens and (
        (tokens[-1].kind == "sign" and tokens[-1].text in (".", ",", ";", ":", "\\\\", "&", "?"))
        or (tokens[-1].kind == "text" and not tokens[-1].text.strip(" ."))
    ):
        tokens = tokens[:-1]
    while tokens and (
        (tokens[0].kind == "sign" and tokens[0].text in (",", ";", ":"))
        or (tokens[0].kind == "text" and not tokens[0].text.strip(" ."))
    ):
        tokens = tokens[1:]
    return tokens


def thousands_merged(tokens: list[Token]) -> list[Token]:
    """`1,234,567.8` outside brackets as one number, and `0,111` as a decimal; a space after the comma keeps a list."""
    if [token.text for token in tokens[:2]] == ["0", ","] and len(tokens) == 3 and not tokens[2].spaced:
        part = tokens[2].text
        if part.isdigit() and len(part) > 2:
            return [Token("number", "0." + part)]
    merged: list[Token] = []
    depth = 0
    index = 0
    while index < len(tokens):
        token = tokens[index]
        depth += (token.text in OPEN) - (token.text in CLOSE)
        end = index + 1
        if depth == 0 and token.kind == "number" and re.fullmatch("[1-9][0-9]{0,2}", token.text):
            while end + 1 < len(tokens) and _group(tokens[end], tokens[end + 1]):
                end += 2
            following = tokens[end] if end < len(tokens) else None
            if following is not None and following.text == "," and not _spaced_after(tokens, end):
                end = index + 1  # 1,234,5 is a list
        digits = "".join(part.text for part in tokens[index:end] if part.text != ",")
        merged.append(Token(token.kind, digits, token.spaced) if end > index + 1 else token)
        index = end
    return merged


def _group(comma: Token, digits: Token) -> bool:
    return (
        comma.text == ","
        and not comma.spaced
        and digits.kind == "number"
        and not digits.spaced
        and re.fullmatch(r"[0-9]{3}(?:\.[0-9]+)?", digits.text) is not None
    )


def _spaced_after(tokens: list[Token], index: int) -> bool:
    return index + 1 >= len(tokens) or tokens[index + 1].spaced


def without_unit(tokens: list[Token]) -> list[Token]:
    """Without currency, percent and unit at the end."""
    kept = [token for token in tokens if token.kind != "currency"]
    if kept and kept[-1].text == "%":
        return kept[:-1]
    return kept[: len(kept) - unit_length(kept)]


def split_range(tokens: list[Token]) -> list[list[Token]]:
    """Both ends of `10–20`, `10 cm to 20 cm` or `from $10 to $20`; one part if it is no range of two numbers."""
    parts = split(tokens, _is_to)
    if len(parts) != 2 or not all(parts):
        return [tokens]
    if parts[0][0].text.strip().lower() == "from":
        parts[0] = parts[0][1:]
    amounts = [[token.kind for token in without_unit(part)] for part in parts]
    if all(kinds and kinds[0] == kinds[-1] == "number" and len(kinds) in (1, 3) for kinds in amounts):
        return parts
    return [tokens]


def _is_to(token: Token) -> bool:
    return token.text == RANGE or (token.text.strip() == "to" and token.kind in ("name", "text"))


def is_prose(part: list[Token]) -> bool:
    """Prose: a comma between words separates nothing."""
    return bool(part) and all(token.kind in ("name", "text") for token in part) and len(part) > 2


def _is_separator(token: Token) -> bool:
    if token.kind == "sign":
        return token.text in (",", ";")
    return is_and(token) or is_or(token)


def is_and(token: Token) -> bool:
    return _is_word(token, "and")


def is_or(token: Token) -> bool:
    return _is_word(token, "or")


def _is_word(token: Token, word: str) -> bool:
    return token.text.strip(" ,").lower() == word and token.kind in ("text", "name", "command")


def split(tokens: list[Token], separates: Callable[[Token], bool]) -> list[list[Token]]:
    """The pieces between the tokens outside brackets for which `separates` holds; there may be empty ones."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += _step(token)
        if depth == 0 and separates(token):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def split_items(tokens: list[Token]) -> list[list[Token]]:
    """The items of a list: between semicolons where there are any, else between commas, `and` and `or`."""
    parts = split(tokens, lambda token: token.kind == "sign" and token.text == ";")
    if len(parts) == 1:
        parts = split(tokens, _is_separator)
    return [part for part in parts if part]


def _step(token: Token) -> int:
    if token.kind in ("begin", "end"):
        return 1 if token.kind == "begin" else -1
    if token.kind not in ("sign", "command"):
        return 0
    return (token.text in OPEN or token.text == "{") - (token.text in CLOSE or token.text == "}")


def closing_index(tokens: list[Token], start: int) -> int | None:
    """The index of the token that closes the bracket at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += _step(tokens[index])
        if depth == 0:
            return index
    return None


def split_relation(tokens: list[Token]) -> tuple[list[list[Token]], list[str]]:
    sides: list[list[Token]] = [[]]
    signs: list[str] = []
    depth = 0
    for token in tokens:
        depth += _step(token)
        if depth == 0 and token.kind in ("sign", "command") and token.text in _RELATIONS:
            signs.append(token.text)
            sides.append([])
        else:
            sides[-1].append(token)
    if signs and not sides[0] and signs[0] in _EQUALITIES:
        sides, signs = sides[1:], signs[1:]  # "= 5", but "> 5" is not 5
    return sides, signs
