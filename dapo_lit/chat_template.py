"""Renders a tokenizer's chat template, which is code from a model folder: under a deadline, and with its errors in one
line. What the code can reach is limited by the sandbox of transformers."""

from collections.abc import Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from dapo_lit.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RENDER_S = 2.0
"""For one prompt, which takes a millisecond."""


class ChatTemplateError(UserError, ValueError):
    """A chat template that fails, or that does not end."""


def apply_chat_template(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Mapping[str, Any]], **settings: Any
) -> Any:
    """The method of the tokenizer of this name, in a thread of its own, which is left behind if it does not end.

    Raises ChatTemplateError: it fails, or takes longer than RENDER_S.
    """
    ended: list[Any] = []

    def render() -> None:
        try:
            ended.append(tokenizer.apply_chat_template([*map(dict, messages)], **settings))
        except Exception as error:  # jinja2's, and whatever the template's expressions raise
            ended.append(error)

    thread = Thread(target=render, daemon=True)
    thread.start()
    thread.join(RENDER_S)
    if not ended or isinstance(ended[0], Exception):
        fault = " ".join(str(ended[0]).split()) if ended else f"it has not ended after {RENDER_S:g} s"
        raise ChatTemplateError(
            f"the chat template of the tokenizer {tokenizer.name_or_path} fails ({fault}); mend chat_template in the "
            "model's folder, or choose a text template (task.template=plain)"
        )
    return ended[0]
