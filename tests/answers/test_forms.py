"""The table of forms: each example is read in each way that its row promises, and by every rule of the checks."""

from typing import get_args

import pytest

from math_answers import Extraction, equal, extract
from math_answers.forms import FORMS, OWN

EXAMPLES = [(form, text, answer) for form in FORMS for text, answer in form.examples]


@pytest.mark.parametrize(("form", "text", "answer"), EXAMPLES, ids=[text for _, text, _ in EXAMPLES])
def test_the_extractions_of_a_form_find_the_answer_of_each_of_its_examples(form, text, answer):
    for extraction in form.read_by:
        found = extract(text, extraction)
        if extraction != "number":  # which knows no place: it is in the row for the answers that are numbers
            assert equal(found or "nothing", answer), (extraction, found)


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
@pytest.mark.parametrize("answer", ["42", "-3.5", "1,234"])
def test_an_answer_written_in_a_form_is_found_by_what_reads_the_form(form, answer):
    answer = "C" if form.name == "choice" else answer
    for extraction in form.read_by:
        found = extract(form.written.format(answer), extraction)
        assert equal(found or "nothing", answer), (extraction, found)


def test_every_extraction_has_a_form_of_its_own():
    assert {*OWN} == {*get_args(Extraction)}
