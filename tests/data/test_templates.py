"""Templates: the exact prompt, its tokens, and the agreement with what the reward reads."""

import json

import pytest

from dapo_lit.data.templates import PromptTemplate, check_agreement
from dapo_lit.tasks.arithmetic import WORKED_EXAMPLES


def test_the_dapo_template_is_the_authors_to_the_letter(data_file):
    reference = json.loads((data_file("dapo_reference/reference.json")).read_text())["prompt_template"]
    expected = reference.replace("{problem}", "What is 2 + 3?")
    assert PromptTemplate.load("dapo").render("What is 2 + 3?") == [{"role": "user", "content": expected}]
    assert PromptTemplate.load("dapo_base").render("What is 2 + 3?") == expected


def test_a_template_that_is_not_there_or_does_not_fit_is_refused(base_tokenizer):
    with pytest.raises(ValueError, match="gsm8k_chat"):
        PromptTemplate.load("gsm8k_caht")
    with pytest.raises(ValueError, match=r"prompts/nowhere\.yaml"):
        PromptTemplate.load("prompts/nowhere.yaml")
    with pytest.raises(ValueError, match="dapo_base"):
        PromptTemplate.load("dapo").encode("2 + 3", base_tokenizer)


@pytest.mark.parametrize(
    ("name", "extraction", "agree"),
    [
        ("dapo", "answer_line", True), ("boxed", "boxed", True), ("gsm8k_few_shot", "hash", True),
        ("plain", "hash", True), ("dapo", "auto", True), ("boxed", "auto", True), ("dapo", "boxed", False),
        ("boxed", "answer_line", False), ("gsm8k_few_shot", "answer_line", False), ("gsm8k_chat", "hash", False),
    ],
)  # fmt: skip
def test_a_reward_that_reads_another_format_than_the_prompt_asks_for_is_refused(name, extraction, agree):
    template = PromptTemplate.load(name)
    if agree:
        check_agreement(template, extraction)
        return
    with pytest.raises(ValueError, match=f"task.template={name}.*reward.extraction={extraction}") as caught:
        check_agreement(template, extraction)
    assert f"reward.extraction={template.answer_format}" in str(caught.value)


def test_the_worked_sums_are_right_and_are_the_ones_the_task_leaves_out():
    messages = PromptTemplate.load("arithmetic_chat").messages
    for question, answer in zip(messages[:-1:2], messages[1::2], strict=True):
        terms = [int(term) for term in question["content"].removeprefix("What is ").removesuffix("?").split(" + ")]
        assert tuple(sorted(terms)) in WORKED_EXAMPLES
        assert answer["content"].splitlines()[-1] == f"Answer: {sum(terms)}"


def test_a_text_template_is_encoded_with_the_tokenizers_own_bos(base_tokenizer):
    ids = PromptTemplate.load("plain").encode("12 + 30", base_tokenizer)
    assert ids[0] == base_tokenizer.bos_token_id
    assert base_tokenizer.decode(ids[1:]) == "12 + 30"
    assert all(type(token) is int for token in ids)


def test_a_chat_template_ends_with_the_generation_prompt_and_has_no_bos_of_its_own(chat_tokenizer):
    ids = PromptTemplate("short", "none", messages=({"role": "user", "content": "Q: {problem}"},)).encode(
        "2 + 3", chat_tokenizer
    )
    assert chat_tokenizer.decode(ids) == "<|im_start|>user\nQ: 2 + 3<|im_end|>\n<|im_start|>assistant\n"
    assert ids[0] == chat_tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert all(type(token) is int for token in ids)


def test_a_template_of_ones_own_is_loaded_by_its_path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text('answer_format: boxed\ntext: "{problem} Put it in \\\\boxed{}."\n')
    template = PromptTemplate.load(str(file))
    assert template.answer_format == "boxed"
    assert template.render("2 + 3") == "2 + 3 Put it in \\boxed{}."
    assert template.around_problem() == ("", " Put it in \\boxed{}.")


FAULTS = {
    "text: '{problem}'": "answer_format: Field required",
    "{answer_format: latex, text: '{problem}'}": "answer_format: Input should be 'answer_line', 'boxed'",
    "{answer_format: none, text: '{problem}', messages: [{role: user, content: '{problem}'}]}": "exactly one of",
    "{answer_format: none, text: '{problem} {problem}'}": "must occur exactly once",
    "{answer_format: none, text: 3}": "text: Input should be a valid string",
    "{answer_format: boxed, text: '{problem}'}": "does not contain",
    "{answer_format: none, messages: [{role: assistant, content: '{problem}'}]}": "must have the role user",
    "{answer_format: none, txt: '{problem}'}": "unknown key txt",
    "text: {unclosed": "not valid YAML",
}


@pytest.mark.parametrize(("content", "reason"), FAULTS.items(), ids=list(FAULTS))
def test_a_faulty_template_is_refused_with_its_name_and_the_reason(tmp_path, content, reason):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ValueError) as caught:
        PromptTemplate.load(str(file))
    assert "mine.yaml" in str(caught.value)
    assert reason in str(caught.value)
