"""Texts made to hang, crash or fool a verifier: all wrong, none by a timeout, nothing executed."""

import json
import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from math_answers.compare import compare_answers
from math_answers.extraction import extract
from math_answers.full import FullComparer
from math_answers.parse import parse_answer
from math_answers.rules import decide

HUGE = [
    "9^{9^9}", "9^9^9^9", "2^{2^{100}}", "(10^8)!", "((5!)!)!",
    r"\binom{10^9}{5 \cdot 10^8}",
    "e^{e^{e^{10}}}", r"\cosh(10^9)", r"2^{\binom{1000}{500}}", "10^{-10^{10}}", "x^{x^{x^{x^x}}}",
    r"\sqrt[10^{-9}]{2}",
]  # fmt: skip
HOSTILE = [
    *HUGE, r"\sum_{k=1}^{10^8} k", r"x + \sum_{k=1}^{n} 9^{9^9}", r"\prod_{k=1}^{999} k^k", "1e400000",
    "7" * 100_000, "7" * 1_900, "0." + "3" * 1_900, "(" * 5_000 + "1" + ")" * 5_000,
    "{" * 900 + "1" + "}" * 900, "-" * 1_900 + "4", "|" * 1_900, r"\frac{1}{" * 200 + "2" + "}" * 200,
    r"\sqrt" * 300 + "2", r"\sin " * 400 + "x", r"\left(" * 300, r"\frac{1}{2", r"\begin{pmatrix} 1 & 2 \\ 3",
    r"\begin{pmatrix}" + "&".join(["1"] * 300) + r"\end{pmatrix}", "1," * 900 + "1", r"\text{" * 400, "1^" * 900 + "1",
    "__import__('os').system('touch {marker}')", "().__class__.__base__.__subclasses__()", "eval(chr(112))",
    r"\text{__import__('os')}", r"\mathrm{open}('{marker}','w')", "lambda x: x", "exec('x')", "f.__globals__", "4\x00",
    "\x00" * 1_000, "\ud800\udfff 42 \udc00", "nan", "inf - inf", r"\infty", r"\frac{0}{0}", "0^0", r"\tan 90^\circ",
    "a" * 1_900, "%" * 1_900, "=" * 1_000, ":" * 1_000, "<" * 1_000, "$" * 1_000, "#" * 1_000, "\\" * 1_001,
    "\n" * 1_000, r"42 \text{ or anything else}", r"42\text{ squared}", "42 million", r"42\text{ if } x > 0",
    "41, 42, 43", "42 or 43", "not 42", "42!",
]  # fmt: skip


@pytest.mark.parametrize("rule", ["sympy", "numeric", "dapo"])
def test_hostile_answers_are_wrong_without_a_timeout_and_execute_nothing(rule, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "executed"
    texts = [text.replace("{marker}", str(marker)) for text in HOSTILE]
    with Verifier(rule=rule, extraction="boxed", deadline_s=5.0) as verifier:
        scores = verifier.score([(RewardProblem("p", "", "42"), rf"so \boxed{{{text}}}") for text in texts])
    wrong = [(text[:60], score) for text, score in zip(texts, scores, strict=True) if score.correct or score.timed_out]
    # Minerva's normalisation is lossy by design, but none of these texts is 42 to it.
    assert wrong == []
    assert not any(score.error for score in scores)
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000, "\\boxed{" * 140_000, "Answer: " * 125_000, "$" * 1_000_000, "#" * 1_000_000, "1," * 500_000,
        "(" * 1_000_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("extraction", ["answer_line", "boxed", "hash", "number", "auto"])
def test_a_megabyte_of_text_gives_no_right_answer(text, extraction):
    prediction = extract(text, extraction)
    assert prediction is None or decide(prediction, "42", "sympy") is not True


def test_in_a_worker_no_text_becomes_an_expression():
    code = """
import sympy
from math_answers.symbolic import refuse_evaluation
from math_answers.full import FullComparer
from math_answers.compare import compare_answers
refuse_evaluation()
for name in ("sympify", "S", "simplify", "Integral", "parse_expr"):
    try:
        getattr(sympy, name)("__import__('os').getpid()")
    except PermissionError:
        continue
    except Exception as error:
        assert isinstance(error.__cause__, PermissionError) or "never evaluated" in str(error), (name, error)
        continue
    raise AssertionError(name)
assert compare_answers(r"\\\\sqrt{8} + x", r"x + 2\\\\sqrt{2}", FullComparer())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


PIECES = r"""
\frac \sqrt \left \right \text{ \boxed{ \begin{pmatrix} \end{pmatrix} \sum_{k=1}^ \binom \sin \log_ \pi \infty \cup
\in \le \pm \{ \} \\ & { } ( ) [ ] | , ; : = < > ^ _ + - * / ! ' % $ \$ ^\circ 0 1 2 10 99 3.5 .5 x y n e i f( abc
and \text{and} cm \pmod{7} \mathbb{R} \setminus \overline{3} 1e10 ½ ² √ ≤ \( \) \[ \] ~ # answer: is
"""
FRAGMENTS = st.sampled_from(PIECES.split())
ANSWERS = st.one_of(
    st.lists(FRAGMENTS, max_size=14).map(" ".join), st.lists(FRAGMENTS, max_size=14).map("".join), st.text(max_size=60)
)
COMPARER = FullComparer()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANSWERS, ANSWERS)
def test_no_pair_of_texts_raises_and_the_training_process_never_contradicts_a_worker(a, b):
    fast = decide(a, b, "sympy")
    full = compare_answers(a, b, COMPARER)
    assert full is not None
    assert fast in (None, full)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANSWERS)
def test_extraction_and_structure_take_any_text(text):
    for extraction in ("answer_line", "boxed", "hash", "number", "auto"):
        answer = extract(text, extraction)
        assert answer is None or isinstance(answer, str)
    assert parse_answer(text)


def test_references_of_the_data_sets_equal_themselves_and_no_mutation_of_themselves(data_file):
    """A digit changed: never the same answer."""
    draw = random.Random(0)
    rows = [json.loads(line) for line in (data_file("math500.jsonl")).read_text().splitlines()]
    for answer in draw.sample([row["answer"] for row in rows], min(250, len(rows))):
        assert decide(answer, answer, "sympy") is True
        digits = [index for index, character in enumerate(answer) if character.isdigit()]
        if digits and "text" not in answer:
            index = draw.choice(digits)
            changed = answer[:index] + str((int(answer[index]) + draw.randint(1, 8)) % 10) + answer[index + 1 :]
            assert not compare_answers(changed, answer, COMPARER), (changed, answer)
