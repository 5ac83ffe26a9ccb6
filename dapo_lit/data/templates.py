"""Prompt templates: from a problem to prompt tokens, as plain text or as chat messages.

A template file is YAML with two keys:

    answer_format: answer_line          the form in which the prompt asks for the answer (see AnswerFormat)
    text: "Question: {problem}\\nAnswer:"

or, instead of `text`, `messages`: a list of {role, content} that ends with the user's message. `{problem}` occurs
exactly once, in the text or in the last message. Worked examples are part of the file. Other braces are ordinary
characters, so LaTeX needs no escaping.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import ConfigDict, ValidationError, model_validator, with_config
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from ablations.errors import UserError, suggestion
from ablations.texts import read_text, yaml_tree
from dapo_lit.chat_template import render_chats
from dapo_lit.data.problem import Problem
from math_answers.forms import FORMS, OWN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AnswerFormat = Literal["answer_line", "boxed", "hash", "tags", "none"]
"""The form that the prompt asks for, a row of `math_answers.forms`; or no request (the policy knows its form)."""

PLACEHOLDER = "{problem}"
ASKING = {form.template: form for form in FORMS if form.template}
"""Shipped templates that are rows of the table of forms, each also with `_base` behind its name: as plain text."""


class TemplateError(UserError, ValueError):
    """A template that does not exist, is not one, or does not fit the policy or the reward."""


@with_config(ConfigDict(extra="forbid"))
class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PromptTemplate:
    """A prompt with a placeholder for the problem; exactly one of `text` and `messages` is set.

    >>> PromptTemplate("short", "none", text="Q: {problem} A:").render("2 + 3")
    'Q: 2 + 3 A:'
    """

    name: str
    answer_format: AnswerFormat
    text: str | None = None
    messages: tuple[Message, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.text is None) == (not self.messages):
            raise ValueError("needs exactly one of text and messages")
        if self.messages and self.messages[-1]["role"] != "user":
            raise ValueError("the last message must have the role user: the policy answers it")
        everything = self.text or "\n".join(message["content"] for message in self.messages)
        if not self._text_with_problem.count(PLACEHOLDER) == everything.count(PLACEHOLDER) == 1:
            raise ValueError(f"{PLACEHOLDER} must occur exactly once, in the text or in the last message")
        if self.answer_format != "none":
            form = OWN[self.answer_format]
            mark = "#" if form.name == "hash" else form.mark  # one hash sign is chain_sum's way
            if not re.search(mark, everything):
                raise ValueError(f"declares answer_format {self.answer_format} but does not contain {form.said}")
        return self

    @property
    def _text_with_problem(self) -> str:
        return self.text if self.text is not None else self.messages[-1]["content"]

    @classmethod
    def load(cls, name_or_path: str, key: str = "task.template") -> "PromptTemplate":
        """A shipped template by name (`dapo`), or any template by the path of its file (`prompts/mine.yaml`).

        Raises TemplateError, naming the file and the key `key`, if there is no such file or it is not a template.
        """
        if name_or_path.endswith((".yaml", ".yml")):
            try:
                content = read_text(Path(name_or_path).expanduser(), error=TemplateError)
            except OSError as error:
                raise TemplateError(f"{key}={name_or_path}: cannot read the file ({error.strerror})") from None
        elif form := ASKING.get(name_or_path.removesuffix("_base")):
            is_text = name_or_path.endswith("_base")
            messages = () if is_text else (Message(role="user", content=form.prompt),)
            return cls(name_or_path, form.name, text=form.prompt if is_text else None, messages=messages)  # type: ignore[arg-type]
        else:
            shipped = files("dapo_lit.data") / "prompt_templates" / f"{name_or_path}.yaml"
            if name_or_path not in shipped_templates():
                raise TemplateError(
                    f"{key}={name_or_path}: no such template; {suggestion(name_or_path, shipped_templates())} "
                    "(a template of your own is named by the path of its .yaml file)"
                )
            content = read_text(Path(str(shipped)))
        return _parse(name_or_path, content)

    def asked(self, problem: Problem) -> tuple[str, Sequence[Mapping[str, str]]]:
        """The statement as this template takes it, for `encode_all`, and the messages before it.

        A template that asks for a form of the answer takes the place of the data set's own instruction; one that asks
        for none leaves the instruction where it was, so that the policy reads what other trainers send.
        """
        before, after = problem.instruction if self.answer_format == "none" else ("", "")
        return before + problem.problem + after, problem.before

    def render(self, problem_text: str) -> str | list[Mapping[str, str]]:
        """The prompt with the problem in place: text, or chat messages."""
        return self.chat(problem_text) if self.text is None else self.text.replace(PLACEHOLDER, problem_text)

    def encode(
        self, problem_text: str, tokenizer: "PreTrainedTokenizerBase", before: Sequence[Mapping[str, str]] = ()
    ) -> list[int]:
        """The prompt's token ids; of one problem, as `encode_all` gives them."""
        return self.encode_all([(problem_text, before)], tokenizer)[0]

    def encode_all(
        self,
        problems: Sequence[tuple[str, Sequence[Mapping[str, str]]]],
        tokenizer: "PreTrainedTokenizerBase",
        day: date | None = None,
    ) -> list[list[int]]:
        """The token ids of the prompts of many problems, which costs half of encoding one by one.

        Messages go through the tokenizer's chat template with the generation prompt appended; text gets the special
        tokens that the tokenizer adds (a BOS token for some base models).
        problems: (statement, messages before it) of each; a row's own messages take the place of the template's.
        day: the date in prompts whose chat template writes one; None: today.
        Raises TemplateError for messages if the tokenizer has no chat template, or if messages before a statement meet
        a text; ChatTemplateError if the chat template fails.
        """
        if not problems:
            return []
        if self.text is not None:
            if any(before for _, before in problems):
                raise TemplateError(
                    f"the template {self.name} is a text, but the problems are chats of several messages; "
                    "choose a template with messages, such as chat"
                )
            texts = [self.text.replace(PLACEHOLDER, statement) for statement, _ in problems]
            return list(tokenizer(texts)["input_ids"])
        if not tokenizer.chat_template:
            raise TemplateError(
                f"the template {self.name} is a chat, but the tokenizer of {tokenizer.name_or_path or 'this policy'} "
                "has no chat template; choose a text template (plain, dapo_base, gsm8k_few_shot) or another policy"
            )
        texts = render_chats(tokenizer, [self.chat(statement, before) for statement, before in problems], day)
        return list(tokenizer(texts, add_special_tokens=False)["input_ids"])  # the chat template has written them

    def chat(self, problem_text: str, before: Sequence[Mapping[str, str]] = ()) -> list[Mapping[str, str]]:
        """The messages of a prompt: those before the problem, the row's own or the template's, and the last one."""
        *own, last = self.messages
        content = last["content"].replace(PLACEHOLDER, problem_text)
        first = before or [{"role": message["role"], "content": message["content"]} for message in own]
        return [*first, {"role": last["role"], "content": content}]

    def around_problem(self) -> tuple[str, str]:
        """The parts before and after the problem, in the text or in the last message."""
        before, _, after = self._text_with_problem.partition(PLACEHOLDER)
        return before, after


def shipped_templates() -> list[str]:
    """Names of the templates in the package: the forms of answers, and files with worked examples or no request."""
    folder = files("dapo_lit.data") / "prompt_templates"
    named = [entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    return sorted([*named, *ASKING, *(f"{name}_base" for name in ASKING)])


def agreed_template(
    name_or_path: str, extraction: str, key: str = "task.template", reading: str = "reward.extraction"
) -> PromptTemplate:
    """PromptTemplate.load and check_agreement."""
    template = PromptTemplate.load(name_or_path, key)
    check_agreement(template, extraction, key, reading)
    return template


def check_agreement(
    template: PromptTemplate, extraction: str, key: str = "task.template", reading: str = "reward.extraction"
) -> None:
    """Refuses a reward that expects another answer format than the prompt asks for: right answers would count as wrong.

    `auto` reads every format, and a template that asks for none fits every reward.
    Raises TemplateError naming the two config keys.
    """
    if extraction == "auto" or template.answer_format in ("none", extraction):
        return
    agreeing = [name for name in shipped_templates() if PromptTemplate.load(name).answer_format == extraction]
    hint = f", or {key} to one with that format ({', '.join(agreeing)})" if agreeing else ""
    raise TemplateError(
        f"{key}={template.name} asks for the answer as {template.answer_format}, but "
        f"{reading}={extraction} reads another format: right answers would count as wrong. "
        f"Set {reading}={template.answer_format} (or auto){hint}"
    )


def _parse(name: str, content: str) -> PromptTemplate:
    fields = yaml_tree(content, f"template {name}", TemplateError)
    if not isinstance(fields, dict):
        raise TemplateError(f"template {name}: needs the keys answer_format and either text or messages")
    try:
        return PromptTemplate(name, **{str(key): value for key, value in fields.items()})
    except ValidationError as error:
        raise TemplateError(f"template {name}: " + "; ".join(map(_fault, error.errors()))) from None


def _fault(details: ErrorDetails) -> str:
    key = ".".join(map(str, details["loc"]))
    match details["type"]:
        case "value_error":
            return details["msg"].removeprefix("Value error, ")
        case "unexpected_keyword_argument":
            return f"unknown key {key}; keys are answer_format, text, messages"
        case _:
            return f"{key}: {details['msg']}"
