"""Splits an answer into pieces: its ends, thousands, separators and relation signs outside all brackets."""

import re
from collections.abc import Callable

from math_answers.tokens import Token

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
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))
_OUTWARD = re.compile(r"([\[\]])([^\[\](){}|]+[,;][^\[\](){}|]+)([\[\]])")


def undelimited(text: str) -> str:
    r"""Without the dollar signs, `\( \)`, `\[ \]` and `** **` around the whole, and without `\( \)` inside."""
    body = text.strip().rstrip("\\").rstrip()
    if not body.endswith(".."):
        body = body.removesuffix(".").rstrip()
    shorter = True
    while shorter:
        shorter = False
        for opening, closing in _DELIMITERS:
            if len(body) > len(opening) + len(closing) and body.startswith(opening) and body.endswith(closing):
                body, shorter = body[len(opening) : -len(closing)].strip(), True
    if "\\" in body:
        body = re.sub(r"(?<!\\)\\[()]|(?<!\\)\\[\[\]]", " ", body)
    outward = _OUTWARD.fullmatch(body)
    if outward and outward[1] + outward[3] != "[]":  # ]0,1[ is (0,1)
        body = ("[" if outward[1] == "[" else "(") + outward[2] + ("]" if outward[3] == "]" else ")")
    return body


def composed(tokens: list[Token]) -> list[Token]:
    """Two-character relations and negated ones as one token."""
    joined: list[Token] = []
    for token in tokens:
        if joined and joined[-1].text == "not" and joined[-1].kind == "command" and token.text in _NEGATED:
            joined[-1] = Token("sign", _NEGATED[token.text], joined[-1].spaced)
            continue
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


def is_prose(part: list[Token]) -> bool:
    """Prose: a comma between words separates nothing."""
    return bool(part) and all(token.kind in ("name", "text") for token in part) and len(part) > 2


def _is_separator(token: Token) -> bool:
    if token.kind == "sign":
        return token.text in (",", ";")
    return token.text.strip(" ,").lower() in ("and", "or") and token.kind in ("text", "name", "command")


def is_and(token: Token) -> bool:
    return token.text.strip(" ,").lower() == "and" and token.kind in ("text", "name", "command")


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
