"""Templates: the exact prompt, its tokens, and the agreement with what the reward reads."""

import json
import string

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from dapo_lit.data.templates import PromptTemplate, check_agreement
from dapo_lit.environments.tools import calculator
from dapo_lit.policy.base import EOS, character_tokenizer
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.tasks.arithmetic import WORKED_EXAMPLES


def test_the_dapo_template_is_the_authors_to_the_letter(data_file):
    reference = json.loads((data_file("dapo_reference/reference.json")).read_text())["prompt_template"]
    expected = reference.replace("{problem}", "What is 2 + 3?")
    assert PromptTemplate.load("dapo").render("What is 2 + 3?") == [{"role": "user", "content": expected}]
    assert PromptTemplate.load("dapo_base").render("What is 2 + 3?") == expected


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


def test_what_the_calculator_says_in_the_worked_sum_is_what_it_would_say():
    direct, asking = PromptTemplate.load("arithmetic_chat"), PromptTemplate.load("calculator_chat")
    words = [message["content"] for message in asking.messages]
    assert {words[0], words[2]} == {message["content"] for message in direct.messages[:-1] if message["role"] == "user"}
    assert words[1] in [message["content"] for message in direct.messages]
    assert words[4] == calculator(RewardProblem("", "", ""), [words[3]])
    assert words[5] == f"Answer: {words[4]}"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Puts a BOS token in front of a text, and has a chat template without one."""
    made = character_tokenizer(string.printable[:95] + "\n")
    made.backend_tokenizer.post_processor = TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 1)])
    made.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    return made


def test_a_text_template_is_encoded_with_the_tokenizers_own_bos(tokenizer):
    ids = PromptTemplate.load("plain").encode("12 + 30", tokenizer)
    assert tokenizer.decode(ids) == f"{EOS}12 + 30"
    assert all(type(token) is int for token in ids)


def test_a_chat_template_ends_with_the_generation_prompt_and_has_no_bos_of_its_own(tokenizer):
    template = PromptTemplate("short", "none", messages=({"role": "user", "content": "Q: {problem}"},))
    ids = template.encode("2 + 3", tokenizer)
    assert tokenizer.decode(ids) == "<user>Q: 2 + 3\n<assistant>"
    assert all(type(token) is int for token in ids)


FAULTS = {
    "text: '{problem}'": "answer_format: Field required",
    "{answer_format: none, text: '{problem}', messages: [{role: user, content: '{problem}'}]}": "exactly one of",
    "{answer_format: none, text: '{problem} {problem}'}": "must occur exactly once",
    "{answer_format: boxed, text: '{problem}'}": "does not contain",
    "{answer_format: none, messages: [{role: assistant, content: '{problem}'}]}": "must have the role user",
    "{answer_format: none, txt: '{problem}'}": "unknown key txt",
}


@pytest.mark.parametrize(("content", "reason"), FAULTS.items(), ids=list(FAULTS))
def test_a_faulty_template_is_refused_with_its_name_and_the_reason(tmp_path, content, reason):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ValueError) as caught:
        PromptTemplate.load(str(file))
    assert "mine.yaml" in str(caught.value)
    assert reason in str(caught.value)
