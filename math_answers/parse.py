r"""An answer's structure: a scalar, words, a list, a tuple, a set, an interval, a relation, a ratio, or raw text.

Splitting comes before parsing: a separator, a relation sign or a set operator outside all brackets decides what an
answer is, and only the pieces between go to the grammar of scalars. Text that no rule reads is kept as it is.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from math_answers.calls import function_name
from math_answers.equations import is_name
from math_answers.expression import Number, Product, Symbol, canonical
from math_answers.grammar import parse_expression
from math_answers.sets import quantities
from math_answers.splitting import (
    CLOSE,
    OPEN,
    RANGE,
    closing_index,
    composed,
    is_and,
    is_or,
    is_prose,
    split,
    split_items,
    split_range,
    split_relation,
    thousands_merged,
    undelimited,
    without_ends,
)
from math_answers.statements import stated_formula
from math_answers.structure import (
    Answer,
    Chosen,
    Combined,
    Range,
    Ratio,
    Raw,
    Reals,
    Relation,
    Scalar,
    Several,
    Words,
    words_of,
)
from math_answers.templates import MAX_ANSWER_CHARS
from math_answers.tokens import ParseError, Token, tokenize, words
from math_answers.units import PERCENT, multiple, unit_length, unit_name, units_agree
from math_answers.vocabulary import FUNCTIONS, WORDS

MAX_ITEMS = 64
"""Items of one list."""

_BOX = re.compile(r"\\f?boxed\s*(?=\{)")
_CHOICE_AND_MORE = re.compile(r"(?:\(([A-J])\)|([A-J])[).:])(?:\\?\s)+(?!(?:and|or|not)\b)(?=\S)")
_ANOTHER_CHOICE = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])")
_CHOICE_NAMED = re.compile(r"^\s*(?:the\s+)?(?:option|choice)\s+(?=\(?[A-J](?:\)?\s*$|[).:]\s))", re.IGNORECASE)
_CHOICE_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox|textrm)\s*\{\s*(\([A-J]\)|[A-J][).:])\s*\}(?=\\?\s+\S)")
_POWER_OF_TEN = re.compile(r"\$?(-?[0-9]{1,3})e([+-]?[0-9]{1,3})\$?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ALL_REALS = words("all_real_numbers all_reals real_numbers all_real")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_CHOICE = re.compile(r"\s*\(?\s*([A-J])\s*[).:]\s*|\s*\(\s*([A-J])\s*\)")


@lru_cache(maxsize=8192)
def parse_answer(text: str) -> tuple[Answer, ...]:
    """The readings of an answer: more than one where commas may mean thousands or items (`100,200`), or a letter of a
    multiple choice precedes the choice (`(B) 12`)."""
    if len(text) > MAX_ANSWER_CHARS:
        return (_unread(text),)
    if _DATE.fullmatch(text.strip(" .$")):
        return (Words(text.strip(" .$")),)
    body = _CHOICE_NAMED.sub("", undelimited(stated_formula(text) or text))
    power = _POWER_OF_TEN.fullmatch(body.strip())
    if power and int(power[1]) == 1:  # nobody writes 1 before Euler's number
        return (Scalar(Number(Fraction(10) ** int(power[2]))),)
    try:
        tokens = without_ends(composed(tokenize(_BOX.sub("", body))))
    except ParseError:
        return (_unread(body),)
    if not tokens:
        return (Raw(""),)
    merged = thousands_merged(tokens)
    try:
        readings = [_answer(merged, 0)]
        if len(merged) == 1 < len(tokens) and not any(re.match("0[0-9]", token.text) for token in tokens):
            readings.append(_answer(tokens, 0))
        if any(token.upright for token in tokens):  # 5\\text{m}: metres, or 5 times m
            readings.append(_answer([replace(token, upright=False) for token in merged], 0))
        if power:  # 2e-3: 0.002, or twice Euler's number less 3
            readings.append(Scalar(Number(int(power[1]) * Fraction(10) ** int(power[2]))))
        return (*readings, *_choice_and_more(body))
    except ParseError:
        return (Raw(" ".join(body.split()), _form(merged)),)


def _choice_and_more(body: str) -> tuple[Chosen, ...]:
    """`(B) 12` as a choice and its text; nothing where another letter follows: `(A) or (B)` names neither."""
    body = _CHOICE_TEXT.sub(r"\1", body)
    choice = _CHOICE_AND_MORE.match(body)
    if choice is None or _ANOTHER_CHOICE.search(body, choice.end()):
        return ()
    return (Chosen(choice[1] or choice[2], parse_answer(body[choice.end() :])),)


def _answer(tokens: list[Token], depth: int) -> Answer:
    """The structure of a token list, decided by the loosest sign outside brackets."""
    tokens = without_ends(tokens)
    if depth > 8:
        raise ParseError("nested too deep")
    if not tokens:
        raise ParseError("an empty item")
    if tokens[0].kind == "begin" and tokens[0].text == "cases" and tokens[-1].kind == "end":
        return _cases(tokens, depth)
    conditions = split(tokens, is_and)
    if len(conditions) > 1 and all(_is_inequality(part) for part in conditions):
        return Combined("cap", tuple(_answer(part, depth + 1) for part in conditions))
    alternatives = split(tokens, is_or)
    if len(alternatives) > 1 and all(_is_inequality(part) for part in alternatives):
        return Combined("cup", tuple(_answer(part, depth + 1) for part in alternatives))
    items = split_items(tokens)
    if len(items) > 1 and not all(is_prose(part) for part in items):
        return _several(items, "", depth)
    unions = split(tokens, _command("cup"))
    if len(unions) > 1 and all(split_relation(part)[1] for part in unions):
        return Combined("cup", tuple(_answer(part, depth + 1) for part in unions))
    sides, signs = split_relation(tokens)
    if not signs and len(sides[0]) < len(tokens):
        return _answer(sides[0], depth + 1)  # "= 5"
    if signs:
        return Relation(tuple(_answer(side, depth + 1) for side in sides), tuple(signs))
    for operator in ("cup", "cap", "setminus"):
        parts = split(tokens, _command(operator))
        if len(parts) > 1:
            return Combined(operator, tuple(_answer(part, depth + 1) for part in parts))
    if tokens[0].text == "{" and closing_index(tokens, 0) == len(tokens) - 1:
        items = split_items(tokens[1:-1])
        return _several(items, "", depth) if len(items) > 1 else _answer(tokens[1:-1], depth + 1)
    if tokens[0].text in OPEN and closing_index(tokens, 0) == len(tokens) - 1:
        bracketed = _bracketed(tokens, depth)
        if bracketed is not None:
            return bracketed
    ends = split_range(tokens)
    if len(ends) == 2:
        return _range([_answer(end, depth + 1) for end in ends])
    if any(token.text == RANGE for token in tokens):
        if tokens[0].text != RANGE and all(token.kind == "number" or token.text == RANGE for token in tokens):
            raise ParseError("numbers between dashes")
        tokens = [replace(token, text="-") if token.text == RANGE else token for token in tokens]
    parts = split(tokens, _sign(":"))
    if 1 < len(parts) < 5 and all(parts):
        return Ratio(tuple(_answer(part, depth + 1) for part in parts))
    return _single(tokens)


def _range(ends: list[Answer]) -> Range:
    """Both ends; a unit after the second one is the first one's too."""
    if isinstance(ends[0], Scalar) and isinstance(ends[1], Scalar) and not ends[0].unit and not ends[0].percent:
        ends[0] = replace(ends[0], unit=ends[1].unit, percent=ends[1].percent)
    return Range((ends[0], ends[1]))


def _is_inequality(tokens: list[Token]) -> bool:
    signs = split_relation(tokens)[1]
    return bool(signs) and set(signs) <= {"<", ">", "le", "ge"} and len(split_items(tokens)) == 1


def _command(name: str) -> Callable[[Token], bool]:
    return lambda token: token.kind == "command" and token.text == name


def _sign(text: str) -> Callable[[Token], bool]:
    return lambda token: token.kind == "sign" and token.text == text


def _raw(tokens: list[Token]) -> Raw:
    return Raw(" ".join(token.text for token in tokens if token.text not in ("{", "}")), _form(tokens))


def _unread(text: str) -> Raw:
    """Text without tokens is compared without its spaces."""
    return Raw(" ".join(text.split()), ("".join(text.split()),))


def _form(tokens: list[Token]) -> tuple[str, ...]:
    r"""The tokens of raw text such that `\int_0^1 x\,dx` is `\int_{0}^{1}x dx`, but not `\int_0^{1x} dx`.

    Words are cut into letters, since spaces between letters have no meaning in a formula. Braces around a single token
    are left out, those around several stay.
    """
    form: list[str] = []
    open_arguments = [0]  # of each open group: how many arguments the last mark or command still takes
    for token in tokens:
        if token.text == "}" and len(open_arguments) > 1:
            open_arguments.pop()
        taken = open_arguments[-1]
        if token.kind == "number":  # of `^12` only the 1 is raised
            pieces = [*token.text[:taken], *filter(None, [token.text[taken:]])]
        elif token.kind == "text" or (token.kind == "name" and function_name(token) is None):
            pieces = list("".join(token.text.split()))
        else:
            pieces = [token.text]
        form += pieces
        if token.text != "}":
            open_arguments[-1] = _ARGUMENTS.get(token.text, max(0, taken - len(pieces)))
        if token.text == "{":
            open_arguments.append(0)
        if form[-3:-2] == ["{"] and form[-1] == "}":
            form[-3:] = form[-2:-1]
    return tuple(form)


_ARGUMENTS = {"^": 1, "_": 1, "frac": 2, "binom": 2}
"""How many arguments a mark or command takes."""


def _several(items: list[list[Token]], brackets: str, depth: int) -> Several:
    if len(items) > MAX_ITEMS:
        raise ParseError("too many items")
    return Several(tuple(_answer(item, depth + 1) for item in items), brackets)


def _bracketed(tokens: list[Token], depth: int) -> Answer | None:
    """A tuple, interval, list or set; None for brackets that only group."""
    opening, closing = OPEN[tokens[0].text], CLOSE.get(tokens[-1].text, "")
    inside = tokens[1:-1]
    if opening == "{":
        for mark in (":", "|"):  # a colon first: the bars of `\{x : |x| < 2\}` are an absolute value
            builder = split(inside, _sign(mark))
            if len(builder) == 2 and all(builder):
                return _builder(_answer(builder[0], depth + 1), _answer(builder[1], depth + 1))
    items = split_items(inside)
    if opening == "{" and not inside:
        return Several((), "{}")
    if len(items) == 1 and opening != "{":
        if opening == "(" and closing == ")" and len(inside) == 1:
            return _answer(inside, depth + 1)
        return None
    return _several(items, opening + closing, depth)


def _builder(members: Answer, condition: Answer) -> Answer:
    r"""The condition of `\{x \in \mathbb{R} : x > 2\}`, whose solutions are the set; any other builder as it is.

    The squares of `\{x^2 : x > 2\}` and the integers of `\{n \in \mathbb{Z} : n > 2\}` are no solutions of `x > 2`.
    """
    name = members
    if isinstance(members, Relation) and members.signs == ("in",) and members.sides[1] == Reals():
        name = members.sides[0]
    if isinstance(name, Scalar) and is_name(name) and quantities(condition) == {canonical(name.node)}:
        return condition
    return Several((members, condition), "{|}")


def _cases(tokens: list[Token], depth: int) -> Answer:
    """A system of equations; a function by cases stays raw."""
    if any(token.text == "&" for token in tokens):
        raise ParseError("a function by cases")
    rows = split(tokens[1:-1], lambda token: token.text == "\\\\")
    return _several([row for row in rows if row], "", depth)


def _single(tokens: list[Token]) -> Answer:
    """A scalar with its unit, words, the real line, or raw text."""
    first = tokens[0]
    if len(tokens) == 1 and first.text in ("mathbbR", "R") and first.kind == "command":
        return Reals()
    if len(tokens) == 1 and first.text == "emptyset":
        return Several((), "{}")
    choice = _choice(tokens)
    if choice is not None:
        return choice
    named = all(token.kind in ("name", "text") for token in tokens)
    letters = all(token.kind == "name" and len(token.text) == 1 for token in tokens)
    if named and (len(tokens) == 1 or not (letters or any(function_name(token) for token in tokens))):
        return _words(tokens)
    written = tokens
    tokens, currency = _without_currency(tokens)
    percent = tokens[-1].text == "%" or (tokens[-1].kind in ("name", "text") and tokens[-1].text.strip() in PERCENT)
    if percent:
        tokens = tokens[:-1]
    tokens, annotation = _without_annotation(tokens)
    length = unit_length(tokens)
    for taken in (length, 0) if length else (0,):
        try:
            node = parse_expression(tokens[: len(tokens) - taken])
        except ParseError:
            continue
        unit = tokens[len(tokens) - taken :]
        factor = multiple(unit)
        if factor is None:
            continue
        if factor != 1:
            node = Product((Number(factor), node))
        name = unit_name(unit) + annotation
        if currency and units_agree(currency, name):  # $5 or $5 USD; else $5/hour
            name = ""
        return Scalar(node, currency + name, percent)
    if named:
        return _words(written)
    return _raw(written)


def _without_currency(tokens: list[Token]) -> tuple[list[Token], str]:
    r"""Without the signs of a currency, `$5`, `5 €`, `\$3 + \$4`; raises ParseError if there are two currencies."""
    currencies = {token.text for token in tokens if token.kind == "currency"}
    if not currencies:
        return tokens, ""
    kept = [token for token in tokens if token.kind != "currency"]
    if len(currencies) > 1 or not kept or kept[-1].text == "%":
        raise ParseError("two currencies, or one without an amount")
    return kept, currencies.pop()


def _without_annotation(tokens: list[Token]) -> tuple[list[Token], str]:
    r"""Without a final `\pmod{n}` or the base of a numeral (`1101_2`), which count as units."""
    for index, token in enumerate(tokens):
        if token.kind == "command" and token.text in ("pmod", "mod", "bmod") and index > 0:
            return tokens[:index], "mod" + "".join(part.text for part in tokens[index + 1 :] if part.text not in "{}()")
    if len(tokens) >= 3 and tokens[0].kind == "number" and tokens[1].text == "_":
        base = "".join(part.text for part in tokens[2:] if part.text not in ("{", "}"))
        base = _BASES.get(base.strip(), base)
        if re.fullmatch("[1-9][0-9]?", base):
            if any(digit >= base for digit in tokens[0].text if len(base) == 1):
                raise ParseError(f"{tokens[0].text} has no base {base}")
            return tokens[:1], "base" + base
    return tokens, ""


def _words(tokens: list[Token]) -> Answer:
    text = " ".join(token.text for token in tokens)
    known = tokens[0].text in WORDS or tokens[0].text in FUNCTIONS
    if len(tokens) == 1 and tokens[0].kind == "name" and (len(tokens[0].text) < 4 or known):
        try:
            return Scalar(parse_expression(tokens), word=tokens[0].text)
        except ParseError:
            pass
    if re.fullmatch(r"\s*[A-Z](?:\s*(?:,|,?\s*and)\s*[A-Z])+\s*", text):
        return Several(tuple(Scalar(Symbol(letter)) for letter in re.findall(r"\b[A-Z]\b", text)), "")
    if "_".join(text.casefold().split()) in _ALL_REALS:
        return Reals()
    return words_of(text)


def _choice(tokens: list[Token]) -> Answer | None:
    r"""The letter of a multiple choice: `\text{(C)}`."""
    if tokens[0].kind != "text" or len(tokens) > 1:
        return None
    found = _CHOICE.fullmatch(tokens[0].text)
    return Scalar(Symbol(found[1] or found[2])) if found else None
