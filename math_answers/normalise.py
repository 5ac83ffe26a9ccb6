r"""The string rule of DAPO: normalise both answers, then compare the strings.

The tables are those of Minerva (arXiv 2206.14858, appendix D.1, listing 1), which DAPO's scorer `math_dapo` applies
unchanged to the reference and to the response. Kept to the letter, because published numbers rest on it: it knows
nothing of mathematics (`0.5` is not `\frac{1}{2}`) and it loses text (`42 square` is `42`, `a 5` is `5`).
"""

import re

_REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)


def normalise_answer(answer: str) -> str:
    r"""The form in which the `dapo` rule compares an answer.

    >>> normalise_answer("x = 1{,}042")
    '1042'
    >>> normalise_answer(r"\frac12") == normalise_answer(r"\frac{1}{2}")
    True
    """
    answer = answer.split("=")[-1]
    for before, after in _REPLACED:
        answer = answer.replace(before, after)
    for removed in _REMOVED:
        answer = answer.replace(removed, "")
    answer = re.sub(r".*?\$(.*?)\$.*", r"$\1$", answer)
    for command in ("text", "textbf", "overline"):
        answer = re.sub(rf"\\{command}\{{(.*?)\}}", r"\1", answer)
    answer = re.sub(r"\\boxed\{(.*)\}", r"\1", answer)
    # \fracab -> \frac{a}{b}, \sqrta -> \sqrt{a}
    answer = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", answer)
    answer = re.sub(r"sqrt([^{])", r"sqrt{\1}", answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()
