r"""What does not count as the same answer: one table a kind of answer, decided by the comparer that the workers use.

The rules are written down in math_answers/README.md; each row here is a case of one of them.
"""

import pytest
from test_equivalence import same

DIFFERENT = {
    "numbers": [
        ("5", "5.001"), ("0.333", "1/3"), ("0.333333", "1/3"), ("100", "1"), ("32, 349", "32349"), ("-5", "5"),
        ("1", r"1\sqrt{19}"), ("3.14", r"\pi"), (r"\frac{22}{7}", r"\pi"), (r"\pi + 10^{-60}", r"\pi"),
        ("1001", r"\frac{2003}{2}"), ("0.28", "28"), ("12:00", "24:00"), ("1:2", "2:1"), (r"\frac{1}{0}", "1"),
        ("", "4"), ("None", "4"), ("0.30000000000001", "0.3"), ("1,234", "1.234"), ("1.2", "1,2"), ("1,23", "123"),
        ("12 34", "1234"), ("5 5", "55"), ("3e8", "3e7"), (r"\sqrt{10^{40}+1}", "10^{20}"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"), ("2^{100}", "2^{101}"), ("twenty-five", "20"), ("none", "0"),
    ],
    "expressions": [
        (r"\sin x", r"\cos x"), (r"\sqrt{x^2}", "x"), ("x^2", "x"), ("X", "x"), ("x + C", "x"), ("x_1", "x"),
        (r"\overline{z}", "z"), ("(a+5)(b+2)", "(+5)(b+2)"), ("f(x)", "f(y)"), (r"10\sqrt{2}", "5*[1+sqrt(2)]"),
        (r"\frac{dy}{dx}", r"\frac{y}{x}"), (r"\int_0^1 x dx", r"\frac12"), (r"\lim_{x\to0} \frac{\sin x}{x}", "1"),
        (r"(x+1)^{100}", r"(x+1)^{101}"), ("2x2y", "4xy"), (r"\sum_{k=1}^{100} k", "5050"),
        ("|x^2-20|", "20-x^2"), ("|x+6| + |x-6|", "12"), ("|x-5| + |x-7|", "|2x-12|"),
        ("|x-1| + |x-1.001|", "|2x-2.001|"),
        (r"|\frac{x}{1000} + 1|", r"\frac{x}{1000} + 1"), ("|x + 2^{40}|", "x + 2^{40}"), ("|x+y+50|", "x+y+50"),
        (r"\sqrt{(a+b+9)^2}", "a+b+9"), ("|f(x)+5|", "f(x)+5"), ("|f(3)|", "f(3)"), (r"\arccos(\cos x)", "|x|"),
        (r"\lfloor x^2/20 \rfloor", "0"), (r"\lfloor x \rfloor", r"\lceil x \rceil - 1"),
        (r"\lfloor f(3)/10 \rfloor", "0"),
        (r"\lfloor x + 0.001 \rfloor", r"\lfloor x \rfloor"), ("|x+5| = 3", "x+5 = 3"),
    ],
    "units, money, percent, degrees, times": [
        (r"5\text{ cm}", r"5\text{ m}"), (r"5\text{ apples}", r"5\text{ oranges}"), ("10m", "10"), ("5 million", "5"),
        (r"5\text{ or more}", "5"), (r"5\text{ squared}", "5"), (r"20\%", r"20\text{ miles}"), (r"28\%", "2.8"),
        (r"90^\circ", "91"), ("2516_8", "2516_7"), ("13", "1101_2"), (r"9 \pmod{11}", r"9 \pmod{12}"),
        ("5 dollars", "5 cents"), ("5 USD", "5 EUR"), (r"5\text{ m}", r"5\text{ s}"), ("20°C", "20°F"),
        ("60 km/h", "60 m/s"), ("5 ft^2", "5 ft^3"), ("12:30 am", "12:30 pm"), ("3:00", "3"), ("6:2", "3"),
        ("5th", "6th"), ("2020-01-05", "2014"), ("1.5 million", "1.5 billion"),
    ],
    "names and equations": [
        ("x = 5", "6"), ("x=1", "y=1"), ("x^2 = 4", "x = 2"), (r"\sin(x)=\frac{42}{59}", r"\cos(x)=\frac{42}{59}"),
        ("5x - 7y + 11z + 4 = 0", "x + y - z + 2 = 0"), ("11a+c", "7 = 11a+c"), ("0", "a + 3z = 0"),
        ("n=1, 2, 3", "n=2, 3, 4"), ("x=1, y=2", "x=2, y=1"), ("AB = 4, CD = 5", "5, 4"), ("2x = 5", "5"),
        ("x + 1 = 5", "5"), ("x^2 = 5", "5"), ("5 = x", "6"),
    ],
    "lists, tuples, sets": [
        ("1, 2", "1"), ("1, 2, 2", "1, 2"), ("(1, 2)", "(2, 1)"), ("[1,2,3]", "(1,3,2)"), (r"\{1,2\}", "(1,2)"),
        (r"\sqrt{67},-\sqrt{85}", r"\sqrt{67}"), ("(3,3),(1,2)", "(3,3)"), (r"1 \pm \sqrt{2}", r"1 + \sqrt{2}"),
    ],
    "intervals and inequalities": [
        ("[0,9)", "(0,9)"), ("(0,1)", "[0,1]"), (r"x \leq 5", r"x \geq 5"), ("x < 5", r"x \le 5"), ("-x < -3", "x < 3"),
        ("|x+5| < 7", "x+5 < 7"),
        (r"(-\infty,0)\cup(1,\infty)", r"(-\infty,0)\cup(0,\infty)"), (r"\mathbb{R}", r"\mathbb{R} \setminus \{0\}"),
        ("(1,2)", "[1,2]"), (r"\{x^2 : x \in [0,9]\}", "[0,9]"), (r"\{2x \mid 1<x<2\}", "(1,2)"),
        (r"\{2x : x=5\}", "5"),
        (r"\{n \in \mathbb{Z} : n > 2\}", r"(2,\infty)"), (r"\{n^2 : n \in \{1,2,3\}\}", r"\{1,2,3\}"),
        (r"\{41 | 42\}", "42"), (r"\{x : y > 2\}", r"(2,\infty)"), (r"\{x : f(x) > 2\}", r"(2,\infty)"),
        (r"\{x : |x| < 2\}", r"(-\infty,2)"), (r"\{x^2 : x > 2\}", r"\{x^2 : x > 3\}"),
        (r"\{n : n > 2\}", "(n, n > 2)"),
        (r"\{x^2 : x > 2\}", r"\{x : x > 2\}"), (r"x \ge 3, x \le 5", r"(-\infty,\infty)"),
        ("x < 3, x > 2", r"\mathbb{R}"),
        (r"x < 3, x \ge 3", r"\mathbb{R}"), (r"x < 3 \text{ and } x \ge 3", r"\mathbb{R}"),
        (r"(1,2) \cap (3,4)", r"(1,2) \cup (3,4)"),
        (r"x > 1 \text{ or } x < 2", "x > 1, x < 2"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}\begin{pmatrix}1\\1\end{pmatrix}", "3"),
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix} + \begin{pmatrix}1\end{pmatrix}",
            r"\begin{pmatrix}2&3\\4&5\end{pmatrix}",
        ),
    ],
    "words and choices": [
        ("odd", r"\text{oddd}"), ("ddo", r"\text{odd}"), ("BCA", "ABC"), ("E", r"\mathrm{E}*2"),
        (r"\text{B, E}", r"\text{A, B, E}"), ("A", "B"), ("yes", "no"), (r"\text{Evelyn}", "Carla"),
        ("!!!invalid!!!", "4"),
    ],
    "other text": [
        (r"\int_{0}^{1} 2x\,dx", r"\int_0^{12} x\,dx"), (r"\int_0^{1x} dx", r"\int_0^1 x\,dx"),
        (r"\int \frac{1}{23} dx", r"\int \frac{1}{2} 3 dx"), (r"\int_1^{ab} x\,dx", r"\int_1^a bx\,dx"),
        (r"\int 1 2 dx", r"\int 12 dx"), (r"\int_0^{12} x\,dx", r"\int_0^12 x\,dx"),
    ],
    "hedges": [
        ("(A) or (B)", "(A)"), ("(A) (B)", "A"), ("A) 1 B) 2", "A"), ("(B) 12", "A"), ("(A) 12 or 13", "12"),
        ("(A) 12 (B) 13", "12"), ("5 or 6", "5"), ("not 5", "5"), (r"5 \lor 6", "5"), ("True or False", "True"),
        ("x > 1 or x < 2", "(1,2)"), ("x > 1 and x < 2", r"\mathbb{R}"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("prediction", "answer"), [pair for pairs in DIFFERENT.values() for pair in pairs])
def test_two_answers_are_different(prediction, answer):
    assert not same(prediction, answer)


HEDGES = (
    r"\ne {}", r"\neq {}", r"\not= {}", r"x \not= {}", "> {}", "< {}", r"\ge {}", r"\le {}", "≠ {}", "<= {}",
    r"\in {}", r"x \in {}", r"\not\in {}", r"\not\approx {}",
)  # fmt: skip


@pytest.mark.parametrize("hedge", HEDGES)
@pytest.mark.parametrize("answer", ["5", r"\frac{1}{2}", "x+1", "1,2", "3:4", r"\text{even}", "(C)", r"5\text{ cm}"])
def test_nothing_but_an_equality_or_a_bare_value_is_an_answer(hedge, answer):
    assert not same(hedge.format(answer), answer)


@pytest.mark.parametrize("answer", [r"\{1,2\}", "(1,2)", r"(-\infty, 3]", r"\mathbb{R}"])
def test_an_element_of_a_set_stands_for_the_set(answer):
    assert same(rf"x \in {answer}", answer)
    assert not same(rf"x \notin {answer}", answer)
