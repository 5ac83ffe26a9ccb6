"""Rewritings are read section by section, and what cannot be used is refused with its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers_case import ORIGINAL, SECTIONS, STATEMENT, written

from dapo_lit.data.problem import Problem
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.preparation.rewriting import (
    RejectedError,
    check_rewriting,
    integer,
    parse_rewriting,
    question,
)


def test_the_papers_case_is_read():
    rewriting = parse_rewriting(written(*SECTIONS))
    assert (rewriting.answer, rewriting.statement, rewriting.answer_format) == (19, STATEMENT, SECTIONS[0])
    check_rewriting(ORIGINAL, rewriting)


def test_the_question_and_its_worked_example_follow_one_form():
    template = PromptTemplate.load("answer_transformation")
    worked, reply, asked = template.render(question(ORIGINAL))
    assert asked["content"] == f"Problem:\n{ORIGINAL.problem}\n\nAnswer:\n{ORIGINAL.answer}"
    example = Problem("e", "Two fair dice are thrown. What is the probability that the sum is 5 or 7?", r"\frac{5}{18}")
    assert worked["content"].endswith(question(example))
    rewriting = parse_rewriting(reply["content"])
    assert rewriting.answer == 5 + 18
    check_rewriting(example, rewriting)


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        ("I cannot.", "malformed", "no section ANSWER FORMAT"),
        (written(*SECTIONS).split("## INTEGER")[0], "malformed", "no section INTEGER ANSWER"),
        (written(SECTIONS[0], " ", *SECTIONS[2:]), "malformed", "the section REWRITTEN STATEMENT is empty"),
        (written(*SECTIONS) + "\n" + written(*SECTIONS), "malformed", "the sections are"),
        (written(*SECTIONS[:3], "k + m + n"), "not_integer", "'k + m + n'"),
        (written(*SECTIONS[:3], "19.5"), "not_integer", "'19.5'"),
    ],
)
def test_a_text_without_the_four_steps_is_rejected(text, reason, detail):
    with pytest.raises(RejectedError, match=r".") as caught:
        parse_rewriting(text)
    assert caught.value.reason == reason
    assert detail in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (ORIGINAL.problem.replace("$", ""), "unchanged"),
        (STATEMENT + r" Hint: it is $11-2\sqrt{6}$.", "quotes_answer"),
    ],
)
def test_a_statement_that_is_the_old_one_or_gives_the_answer_away_is_rejected(statement, reason):
    rewriting = parse_rewriting(written(SECTIONS[0], statement, *SECTIONS[2:]))
    with pytest.raises(RejectedError) as caught:
        check_rewriting(ORIGINAL, rewriting)
    assert caught.value.reason == reason


@pytest.mark.parametrize("text", ["", "1/2", "3.0", "x", "-", "1,00", "9" * 100, "12 34", "²", r"\boxed{}"])
def test_what_is_no_integer_is_none(text):
    assert integer(text) is None


@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from(["{}", "${}$", "{}.", r"\boxed{{{}}}", r"$\boxed{{{}}}$.", "Answer: {}"]),
)
def test_an_integer_is_read_in_each_of_its_customary_forms(value, form):
    assert integer(form.format(value)) == integer(form.format(f"{value:,}")) == value


@given(st.text(max_size=200))
def test_no_text_does_more_than_be_rejected(text):
    with pytest.raises(RejectedError):
        parse_rewriting(text)
