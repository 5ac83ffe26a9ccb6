"""The example of the paper's appendix A, as a model should write it."""

from dapo_lit.data.problem import Problem
from dapo_lit.preparation.rewriting import HEADINGS

# The case of the paper's appendix A: 11 - 2 sqrt(6) asked for as k + m + n = 11 + 2 + 6 = 19.
ORIGINAL = Problem(
    "a",
    "Let $x$ and $y$ be real numbers such that $x^2 + y^2 - 22x - 16y + 113 = 0.$ "
    "Find the smallest possible value of $x.$",
    r"11 - 2 \sqrt{6}",
)
STATEMENT = (
    "Let $x$ and $y$ be real numbers such that $x^2 + y^2 - 22x - 16y + 113 = 0.$ "
    "The smallest possible value of $x$ is "
    r"$k - m\sqrt{n},$ where $k, m, n$ are positive integers and $n$ is square-free. Find $k + m + n.$"
)
SECTIONS = (r"$k - m\sqrt{n}$, ask for k + m + n.", STATEMENT, "(x - 11)^2 + (y - 8)^2 = 72, ... 19.", "19")


def written(*sections: str) -> str:
    return "Here it is.\n" + "\n".join(f"## {name}\n{text}" for name, text in zip(HEADINGS, sections, strict=True))
