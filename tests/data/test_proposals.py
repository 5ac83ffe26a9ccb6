"""Columns, prompt and reward that are proposed for data of one's own."""

import pytest

from dapo_lit.ablate import find_columns, propose_reward, propose_template
from dapo_lit.data.rows import DataError
from dapo_lit.data.templates import PromptTemplate, check_agreement


def test_columns_without_a_usual_name_are_asked_for(write_jsonl):
    with pytest.raises(DataError, match=r"task\.columns"):
        find_columns(write_jsonl({"text": "1 + 1?", "number": 2}))


@pytest.mark.parametrize("extraction", ["answer_line", "boxed", "hash", "number", "auto"])
@pytest.mark.parametrize("is_chat", [True, False])
def test_a_proposed_template_exists_and_fits_tokenizer_and_reward(extraction, is_chat):
    template = PromptTemplate.load(propose_template(extraction, is_chat))
    assert bool(template.messages) == is_chat
    check_agreement(template, extraction)


def test_the_last_number_is_read_only_where_every_answer_is_one():
    assert propose_reward(["3", "-1.5", "1,080"]) == "number"
    assert propose_reward(["3", "x + 1"]) == "math"
