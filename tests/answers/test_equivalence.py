r"""What counts as the same answer: one table a kind of answer, decided by the comparer that the workers use.

The rules are written down in math_answers/README.md; each row here is a case of one of them.
"""

import pytest

from math_answers.compare import compare_answers
from math_answers.full import FullComparer
from math_answers.rules import decide

COMPARER = FullComparer()


def same(prediction: str, answer: str) -> bool:
    """The verdict on two answers, as the workers reach it; the training process never contradicts it."""
    verdict = compare_answers(prediction, answer, COMPARER)
    assert verdict is not None
    assert decide(prediction, answer, "sympy") in (None, verdict)
    return verdict


EQUAL = {
    "numbers": [
        ("5", "5.0"), ("0.5", r"\frac{1}{2}"), (".5", "1/2"), (r"\frac12", r"\dfrac{1}{2}"), (r"2\frac{1}{3}", "7/3"),
        ("1 1/2", "1.5"), ("3½", "7/2"), ("1,234,567", "1234567"), (r"1{,}234", "1234"), (r"12\,345", "12345"),
        (r"14 {, }916", "14916"), ("1 000 000", "1000000"), ("3.0e-05", r"3 \times 10^{-5}"),
        (r"0.\overline{3}", "1/3"),
        (r"0.1\overline{6}", r"\frac{1}{6}"), ("2^{10}", "1024"), ("5!", "120"), (r"\binom{5}{2}", "10"),
        (r"{5 \choose 2}", "10"), (r"\lfloor 3.7 \rfloor", "3"), ("|-3|", "3"), ("-(-3)", "3"), (r"\sqrt[3]{-8}", "-2"),
        ("−4", "-4"), ("0.1000000000000000055", "0.1"), ("$42$.", "42"), ("٤٢", "42"), ("3,5", "3.5"), ("= 5", "5"),
        ("`42`", "42"), (r"\mathbf{42}", "42"), (r"\text{42}", "42"), ("3e8", r"3 \times 10^8"), ("1e-3", r"10^{-3}"),
        ("2e-3", "2e - 3"), ("3x10^8", "300000000"), (r"1011_{\text{two}}", "1011_2"),
        (r"1011\text{ (base 2)}", "1011_{2}"), (r"1,2,\ldots,10", r"1,2,\dots,10"),
        (r"5\operatorname{cis} 30^\circ", r"5(\cos 30^\circ + i\sin 30^\circ)"), ("2:3", r"\frac{2}{3}"),
        ("0.5", "1:2"),
    ],
    "surds and constants": [
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), (r"\sqrt{12}", r"2\sqrt3"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"), (r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"\sin 15^\circ"),
        (r"\cos\frac{\pi}{7} - \cos\frac{2\pi}{7} + \cos\frac{3\pi}{7}", r"\frac12"), (r"e^{\ln 3}", "3"),
        (r"e^{i\pi}", "-1"), (r"\log_2 8", "3"), (r"\log 100", "2"), (r"\log 2", r"\ln 2"),
        (r"\frac{\log 8}{\log 2}", "3"), ("sqrt(17)", "4.123105625617661"), (r"\pi/4", r"\frac{\pi}{4}"), ("π", r"\pi"),
        ("2√3", r"2\sqrt{3}"), (r"\arctan 1", r"\frac{\pi}{4}"), (r"8^{\frac23}", "4"), (r"(1+i)^2", "2i"),
    ],
    "expressions": [
        ("(x-2)(x+2)", "x^2-4"), ("a*b + c", "c + ba"), (r"\frac{x^2-1}{x-1}", "x+1"), (r"\sin^2 x", r"1-\cos^2 x"),
        (r"\sin 2x", r"2\sin x\cos x"), (r"\sin^{-1} x", r"\arcsin x"), (r"x^{2/3}", r"\sqrt[3]{x^2}"),
        (r"\sqrt{x^2}", "|x|"), ("|x-1|", "|1-x|"), ("|xy|", "|x||y|"), ("|x^2+1|", "x^2+1"), ("2|f(x)|", "|-2f(x)|"),
        (r"\sqrt{x^2-12x+36}", "|x-6|"), (r"\sqrt{1-\cos^2 x}", r"|\sin x|"), (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}"),
        (r"\sin(\arccos x)", r"\sqrt{1-x^2}"), (r"\lfloor x+1 \rfloor", r"1 + \lfloor x \rfloor"),
        (r"\lceil x \rceil", r"-\lfloor -x \rfloor"), (r"2\ln x", r"\ln x^2"), (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
        (r"n!", r"n \cdot (n-1)!"), ("a_{n+1}", "a_{1+n}"), ("7*sin(pi*x/5)+1", r"7 \sin\left(\frac{\pi}{5}x\right)+1"),
        ("2[x+1]", "2x+2"), (r"F_n = \sum_{k=0}^{n-1} F_{n-k-1} F_k", r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}"),
        ("f(2x)", "f(x+x)"), (r"2 \overline{z}", r"\overline{z} \cdot 2"), (r"\left(3\right)", "(3)"),
    ],
    "units, money, percent, degrees, times": [
        (r"5\text{ cm}", "5"), (r"10\text{ cm}^2", r"10 \text{ square centimeters}"), ("5 apples", "5"),
        (r"60\ \text{mph}", "60"), (r"\$10", "10"), ("$18", "18"), ("5 million", "5,000,000"),
        ("2 lakh", "200000"), ("3 times", "3"), ("5 seconds", "5"),
       
        (r"\$2.5 \text{ million}", "2500000"), ("€5", "5"), (r"28\%", "0.28"), (r"90^\circ", "90"),
        (r"90^\circ", r"\frac{\pi}{2}"), ("30 degrees", r"30^\circ"), ("2516_8", "2516"), (r"9 \pmod{11}", "9"),
        (r"x \equiv 3 \pmod{7}", "3"), ("USD 5", r"\$5"), ("Rs. 50", "50"), ("$1.5 million", "1500000"),
        (r"5\,\mathrm{m}", "5"), (r"5\text{ m}", r"5\text{ meters}"), (r"9.8\,\mathrm{m}/\mathrm{s}^2", "9.8"),
        ("72 miles per hour", "72 mph"), ("5 sq. ft.", "5 square feet"), ("7 years old", "7"),
        (r"20^{\circ}\mathrm{C}", "20 degrees Celsius"), ("12:30 PM", "12:30 p.m."),
        (r"10\!:\!45 \text{ a.m.}", "10:45 am"), ("5th", "5"),
    ],
    "names and equations": [
        ("x = 5", "5"), (r"x = \frac{10}{2} = 5", "x=5"), (r"\sqrt{4} = 2", "2"), ("f(x) = 2x+3", "2x+3"),
        ("y = 2x + 3", "2x - y + 3 = 0"), ("AB = 4, CD = 5", "4, 5"), ("(p, q) = (3, 2)", "(3,2)"),
        ("x=1, y=2", "y=2, x=1"), ("x = 1 or x = 2", "1, 2"), (r"x = 1 \text{ or } 2", "2, 1"),
        (r"\text{Area} = 12", "12"), ("S_1:S_2 = 7:32", "7:32"), (r"x \approx 11", "11"),
        (r"\frac{\sqrt3}{3} \approx 0.577", r"\frac{\sqrt3}{3}"),
        (r"\begin{cases} x = 1 \\ y = 2 \end{cases}", "x=1, y=2"),
    ],
    "lists, tuples, sets": [
        ("1, 2, 3", "3, 2, 1"), ("1 and 2", "1, 2"), (r"7, -2, \text{ and } -5", "-5,-2,7"), (r"\{1, 2\}", r"\{2, 1\}"),
        (r"\{1, 1, 2\}", r"\{1, 2\}"), ("1, 2", r"\{2,1\}"), (r"\{5\}", "5"), ("(1, 4.5)", r"\left(1, \frac92\right)"),
        ("(0;0),(1;2)", "(1,2),(0,0)"), ("1, 2", "(1, 2)"), ("[1,2,3]", "(1,2,3)"), ("100,200", "100200"),
        (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"), (r"\emptyset", r"\{\}"), ("7:32", "7 : 32"),
        (r"\langle 1, 2 \rangle", "(1,2)"),
    ],
    "intervals and inequalities": [
        ("]0,1[", "(0,1)"), ("[0,1[", "[0,1)"), (r"x \in [0.5, \infty)", r"[1/2, \infty)"),
        (r"(-\infty,0)\cup(0,\infty)", r"(0,\infty) \cup (-\infty,0)"),
        (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R} \setminus \{0\}"), (r"x \ne 0", r"(-\infty,0)\cup(0,\infty)"),
        ("x < 3", "3 > x"), ("2x < 6", "x < 3"), ("2|x-1| < 6", "|1-x| < 3"),
        ("x < 3", r"(-\infty, 3)"), ("[-2, 7]", r"-2 \le x \le 7"),
        ("(0,1)", "0 < f(x) < 1"), (r"x < 1 \text{ or } x > 2", r"(-\infty,1)\cup(2,\infty)"),
        (r"[1,2] \cup [2,3]", "[1,3]"), (r"\{x \mid x > 3\}", r"(3, \infty)"),
        (r"\{x \in \mathbb{R} : x \ne 3\}", r"x \ne 3"),
        (r"\{x : x < 1 \text{ or } x > 2\}", r"(-\infty,1)\cup(2,\infty)"),
        (r"x \ge -2, x \le 7", r"x \in [-2,7]"), (r"x \ge 3; x \le 5", r"[3,5]"),
        ("x < 1, x > 2", r"(-\infty,1)\cup(2,\infty)"),
        (r"x > 1, x \ne 2", r"(1,2)\cup(2,\infty)"),
        (r"x < 1, 2 < x < 3, \text{ or } x > 4", r"(-\infty,1)\cup(2,3)\cup(4,\infty)"),
        (r"(1,3) \cap (2,4)", "(2,3)"), (r"(1,2) \cap (3,4)", r"\emptyset"),
        (r"x > 1 \text{ or } x < 2", r"\mathbb{R}"),
        (r"\{n^2 : n > 3\}", r"\{ n^2 \mid 3 < n \}"),
       
        ("f(2) < f(1) < f(4)", "f(4) > f(1) > f(2)"), ("x > 1 and x < 2", "(1,2)"),
        (r"x > 1 \text{ and } x \le 2", "1 < x <= 2"), (r"x \le -1 \cup x \ge 1", r"(-\infty,-1]\cup[1,\infty)"),
        ("(-oo, 3)", r"(-\infty, 3)"), ("all real numbers", r"\mathbb{R}"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \\ \end{bmatrix}"),
        (r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix} + \begin{pmatrix}5&6\end{pmatrix}", r"\begin{pmatrix}6&8\end{pmatrix}"),
        (r"2\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"), ("[[1,2],[3,4]]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}\frac{x^2}{x}\\0.5\end{pmatrix}", r"\begin{pmatrix}x\\\frac12\end{pmatrix}"),
    ],
    "other text": [
        (r"\int_0^1 x\,dx", r"\int_{0}^{1}xdx"), (r"\lim_{x\to 1} x", r"\lim_{x\to1}{x}"),
        (r"\int \frac{1}{2}x\,dx", r"\int \frac12 x dx"), (r"\int_{-1}^{ab} \sin x\,dx", r"\int_{-1}^{a b} \sin{x} dx"),
    ],
    "words and choices": [
        (r"\text{Evelyn}", "Evelyn"), ("Yes.", "yes"), (r"\text{(C)}", "C"), ("(C)", r"\textbf{C}"),
        (r"\text{A, C}", "C, A"), (r"\text{the hexagon}", "hexagon"), ("(B) 12", "B"), ("B. 12", r"\text{(B)}"),
        ("choice (B)", "(B)"), ("(A) 12", "12"), (r"\textbf{(E)}\ 12", "E"), ("No solutions", r"\text{no solution}"),
        ("DNE", "does not exist"), (r"f = \text{neither}", "neither"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("prediction", "answer"), [pair for pairs in EQUAL.values() for pair in pairs])
def test_one_answer_in_two_spellings_is_equal(prediction, answer):
    assert same(prediction, answer)
