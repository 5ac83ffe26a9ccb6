"""Text to one spelling before it is cut into tokens: ASCII signs, digit groups joined, `3x10^8`, `p.m.`, `Rs. 5`."""

import re
import unicodedata
from itertools import groupby

from math_answers.quantity import ascii_digits

_UNICODE = {
    **{"−": "-", "—": "–", "×": r"\cdot ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/"},
    **{"⁄": "/", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx "},
    **{"∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
    **{
        "±": r"\pm ",
        "∓": r"\mp ",
        "°": r"^\circ ",
        "º": r"^\circ ",
        "ℝ": r"\mathbb{R}",
        "′": "'",
        "’": "'",
        "θ": r"\theta ",
    },
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
# Digit groups that always mean thousands: 1{,}234  1,\!234  1\,234  1 234
_GROUPS = re.compile(r"(?<![0-9.])([0-9]{1,3})((?:(?:\ ?\{\ ?,\ ?\}\ ?|,?\\[!,]\s*|\ )[0-9]{3})+)(?![0-9]|\s*/)")
_GROUP_MARK = re.compile(r"[^0-9]")
_REPEATING = re.compile(r"([0-9]*\.[0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?")
# 3x10^8, 3 x 4: between digits an x is a times sign
_TIMES = re.compile(r"(?<=[0-9])(?:\s*[xX]\s*(?=10\s*\^)|\s+[xX]\s+(?=[0-9]))")
# 3e8 as the whole answer; in an expression e is Euler's number
_EXPONENT = re.compile(r"^(\s*[-+]?[0-9]+)e([0-9]\s*)$")
_BASE = re.compile(r"(?<=[0-9A-F])\s*(?:\\text\s*\{)?\s*\(?(?:in )?base[- ]([0-9]{1,2}|[a-z]{3,5})\)?\}?\s*$")
# 12:30 PM, 3 p.m.
_HALF_DAY = re.compile(
    r"(:[0-9]{2}|[0-9](?=[^0-9]{1,12}\.m))(?:\\[ ,;!]|\s|~)*(?:\\(?:text|mathrm|rm)\s*\{\s*)?([ap])\.?\s?m\b\.?\s*\}?",
    re.IGNORECASE,
)
_SQUARE = re.compile(r"\b(sq|cu)\.\s*(?=[a-z])")
_RUPEES = re.compile(r"\bRs\.?\s*(?=[0-9])")
_US_DOLLARS = re.compile(r"\bUS\s?(?=\\?\$)")


def spelled(text: str) -> str:
    """One spelling for signs, digit groups, products and abbreviations with full stops."""
    if not text.isascii():
        text = ascii_digits(text)
        text = _UNICODE_SIGN.sub(lambda m: _UNICODE[m[0]], _positioned(text))
        text = unicodedata.normalize("NFKC", text)
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)  # a backslash doubled by an escaped source
    text = _REPEATING.sub(_repeating, text)
    text = _TIMES.sub(r"\\cdot ", text)
    text = _BASE.sub(r"_{\1}", _EXPONENT.sub(r"\1E\2", text))
    text = _SQUARE.sub(r"\1 ", _HALF_DAY.sub(_half_day, _RUPEES.sub("₹", _US_DOLLARS.sub("", text))))
    return _GROUPS.sub(lambda m: m[1] + _GROUP_MARK.sub("", m[2]), text)


def _positioned(text: str) -> str:
    """Raised and lowered characters, and fractions of one character, as LaTeX: `x₁²` as `x_{1}^{2}`, `1½` as `1 1/2`.

    NFKC makes plain digits of them, so that `101₂` would be 1012.
    """
    written = ""
    for position, run in groupby(text, _position):
        characters = [unicodedata.normalize("NFKC", c) if position else c for c in run]
        if position in _SCRIPTS:
            written += _SCRIPTS[position] + "{" + "".join(characters) + "}"
        elif position:
            written += "".join(f"{{{c}}}" if written.endswith(("^", "√")) else f" {c}" for c in characters)
        else:
            written += "".join(characters)
    return written


_SCRIPTS = {"<super>": "^", "<sub>": "_"}


def _position(character: str) -> str:
    """How Unicode says that a character is set, empty for one on the line."""
    if character.isascii() or character in _UNICODE:
        return ""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return kind if kind in ("<super>", "<sub>", "<fraction>") else ""


def _half_day(found: re.Match[str]) -> str:
    return rf"{found[1]}\text{{ {found[2].lower()}m}}"


def _repeating(found: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as a fraction: (16 - 1) / 90."""
    whole, _, fixed = found[1].partition(".")
    period = found[2]
    if len(period) > 40 or len(fixed) > 40 or len(whole) > 40:
        return found[0]
    scale = 10 ** len(fixed)
    numerator = int((whole or "0") + fixed + period) - int((whole or "0") + fixed)
    return f"({numerator}/{scale * (10 ** len(period) - 1)})"
