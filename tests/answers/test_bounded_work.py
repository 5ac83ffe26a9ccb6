"""No text that a model writes makes the training process work for long: each construct fills an answer, and the
calls that a verdict takes are counted.
"""

import cProfile
import signal

import pytest

from math_answers.compare import compare_answers
from math_answers.expression import canonical
from math_answers.fast import FastComparer, value
from math_answers.grammar import MAX_NESTING
from math_answers.parse import parse_answer
from math_answers.templates import MAX_ANSWER_CHARS

MAX_CALLS = 600_000
"""Calls of functions, Python's own included: some 200 ms. An ordinary verdict takes about 1,000."""
HANGS_S = 20
"""Processor seconds after which a verdict is given up; `MAX_CALLS` take about one, because they are counted."""
STACK = 250
"""Frames below the verdict, more than a trainer has: nothing may come near Python's limit of 1,000."""

SEPARATED = {
    "sum": ("1+", "x+", "xy-", r"\frac{1}{3}+", "0.25+"),
    "product": ("2*", "x*", "(x+1)", r"\sqrt{2}", r"\sin x", "3/", "x/"),
    "list": ("1,", "x,", "(1,2),", r"\{1,2\},", "[1,2),", "x=1,", "x<1,", "1:2,", "AB=1,", "1 and ", "yes, "),
    "set": (r"(1,2)\cup", r"\{1\}\cup", r"\mathbb{R}\setminus\{1\}\cup", "x<1<", "x=1=", "1:"),
    "matrices": (
        r"\begin{matrix}1&1\\1&1\end{matrix}",
        r"\begin{matrix}a&b\\c&d\end{matrix}",
        r"\begin{matrix}1\end{matrix}",
        r"\begin{matrix}1&1\\1&1\end{matrix}+",
        r"\begin{vmatrix}1&1\\1&1\end{vmatrix},",
    ),
    "series": (r"\sum_{k=1}^{999}k,", r"\sum_{k=1}^{999}"),
    "large": (r"\sqrt[3]{7^{3000}},", "2^{9999},", "999!,", r"\binom{1999}{999},", "9^{9^9},", r"\sqrt[64]{2^{9984}},"),
    "postfix": ("^2", "!", "'", r"^\circ", r"\circ", "_1", "^{-1}", "%", "^", "_"),
    "prefix": ("-", "+", r"\pm", r"\sin", r"\ln", r"\sqrt", "|", r"\overline", r"\frac", r"\log_"),
    "infix": (r"1\choose", r"1\over", r"1\pm", "{}", "1^", "x_", "f(", r"\left(", "1 1/2 "),
    "text": (r"\text{cm}", "cm ", r"\text{a}", "word ", "an ", "A) ", "(A) 1 ", "$", r"\(", "**", "`", "#", "&", r"\\"),
    "digits": ("7", "7.", "1,000", "1 000", r"1{,}000", r"\,000", "1e9", "0.3", "½", "²", "٣", " ", "\n", "~", "="),
}
NESTED = {
    "brackets": [("(", ")"), ("{", "}"), ("[", "]"), (r"\{", r"\}"), (r"\left|", r"\right|"), ("[", ")")],
    "fractions": [(r"\frac{1}{1+", "}"), (r"\frac{", "}{2}"), ("1/(1+", ")"), (r"{1 \over 1+", "}")],
    "roots": [(r"\sqrt{1+", "}"), (r"\sqrt[3]{", "}"), (r"\sqrt[", "]{8}")],
    "powers": [("2^{", "}"), ("x^{", "}"), (r"x^{y\sin(", ")}"), ("(", ")^2"), ("(", ")^4"), ("1^{0 x+", "}")],
    "functions": [
        (r"\sin(", ")"), (r"\ln(", ")"), ("f(", ")"), (r"\cosh(", ")"), (r"\lfloor ", r"\rfloor"),
    ],
    "factorials": [("(", "!)"), (r"\binom{", "}{1}"), (r"{", r"\choose 1}")],
    "subscripts": [("x_{1+", "}"), ("x_{", "}"), (r"\log_{", "} 3"), ("a_{n-f(", ")}")],
    "series": [(r"\sum_{k=1}^{", "}k"), (r"\sum_{k=1}^{9}(k+", ")")],
    "matrices": [
        (r"\begin{pmatrix}", r"\end{pmatrix}"),
        (r"\begin{vmatrix}1&2\\3&", r"\end{vmatrix}"),
        (r"(\begin{pmatrix}1&1\\1&1\end{pmatrix}", ")^4"),
    ],
    "lists": [("(1,", ")"), (r"\{1,", r"\}"), (r"\{x=", "=1\\}"), (r"\{1,2,3\},\{", r"\}")],
    "signs": [("-(", ")"), (r"\pm(", ")"), (r"\text{", "}"), (r"\boxed{", "}")],
}  # fmt: skip


def assert_few_calls(prediction: str, answer: str) -> None:
    """Until the training process has its verdict, with empty caches; ends those that would not end."""
    for cached in (parse_answer, canonical, value):
        cached.cache_clear()
    counter = cProfile.Profile()
    what = f"{prediction[:100]!r} ({len(prediction)} characters) against {answer[:60]!r}"

    def give_up(number: int, frame: object) -> None:
        raise AssertionError(f"no verdict after {HANGS_S} s: {what}")

    def below(frames: int) -> None:
        if frames:
            below(frames - 1)
            return
        signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
        try:
            counter.runcall(compare_answers, prediction, answer, FastComparer())
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    before = signal.signal(signal.SIGVTALRM, give_up)
    try:
        below(STACK)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    calls = sum(entry.callcount for entry in counter.getstats())
    assert calls <= MAX_CALLS, what


def assert_bounded(text: str) -> None:
    """Both sides of a comparison can be a model's: votes compare answers."""
    for prediction, answer in ((text, "42"), (text, "2:3"), (text + "+y", "y+" + text)):
        assert_few_calls(prediction, answer)


@pytest.mark.parametrize("kind", SEPARATED)
def test_what_stands_in_a_row_is_judged_in_bounded_work(kind):
    for part in SEPARATED[kind]:
        assert_bounded(part * ((MAX_ANSWER_CHARS - 2) // len(part)) + "1")


@pytest.mark.parametrize("kind", NESTED)
def test_what_is_nested_is_judged_in_bounded_work(kind):
    for opening, closing in NESTED[kind]:
        for depth in (MAX_NESTING - 2, MAX_NESTING // 2 - 1):  # the deepest that is read, at one or two levels
            text = opening * depth + "x" + closing * depth
            assert_bounded(text)
            assert_bounded(text.replace("x", "1"))
