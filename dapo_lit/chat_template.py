"""Renders a tokenizer's chat template, which is code from a model folder: under a deadline, and with its errors in one
line. What the code can reach is limited by the sandbox of transformers; the clock is replaced by one day, so that a
run, and all arms of a study, get the same prompts whenever they are started."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from threading import Thread
from typing import TYPE_CHECKING, Any

from ablations.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RENDER_S = 2.0
"""For the first chat, which takes a millisecond; as much again for every hundred."""
CLOCK = "strftime_now"
"""The function by which a chat template asks for the time."""


class ChatTemplateError(UserError, ValueError):
    """A chat template that fails, or that does not end."""


def today() -> date:
    """The present day, in UTC like the times in run.json."""
    return datetime.now(UTC).date()


def render_chats(
    tokenizer: "PreTrainedTokenizerBase",
    chats: Sequence[Sequence[Mapping[str, Any]]],
    day: date | None = None,
    add_generation_prompt: bool = True,
) -> list[str]:
    """The text of each chat, rendered in a thread of its own, which is left behind if it does not end.

    day: what the template is told when it asks for the time; None: today.

    Raises ChatTemplateError: the template fails, or takes longer than RENDER_S.
    """
    ended: list[Any] = []
    moment = datetime.combine(day or today(), time())
    settings = {"tokenize": False, "add_generation_prompt": add_generation_prompt, CLOCK: moment.strftime}

    def render() -> None:
        try:
            ended.append(tokenizer.apply_chat_template([[*map(dict, chat)] for chat in chats], **settings))
        except Exception as error:  # jinja2's, and whatever the template's expressions raise
            ended.append(error)

    thread = Thread(target=render, daemon=True)
    thread.start()
    thread.join(RENDER_S * (1 + len(chats) / 100))
    if not ended or isinstance(ended[0], Exception):
        fault = " ".join(str(ended[0]).split()) if ended else f"it has not ended after {RENDER_S:g} s"
        raise ChatTemplateError(
            f"the chat template of the tokenizer {tokenizer.name_or_path} fails ({fault}); mend chat_template in the "
            "model's folder, or choose a text template (task.template=plain)"
        )
    texts: list[str] = ended[0]
    return texts


def asks_for_time(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """True if the tokenizer's chat template writes the date."""
    return CLOCK in str(tokenizer.chat_template)
