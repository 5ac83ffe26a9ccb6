"""Renders a tokenizer's chat template, which is code from a model folder: in a process with a deadline and a limit of
memory, and with its errors in one line. What the code can reach is limited by the sandbox of transformers; the clock is
replaced by one day, so that a run, and all arms of a study, get the same prompts whenever they are started."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from ablations.errors import UserError
from dapo_lit.model_worker import ask

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
    """The text of each chat, as the tokenizer's `apply_chat_template` gives it.

    day: what the template is told when it asks for the time; None: today.

    Raises ChatTemplateError: the template fails, takes longer than RENDER_S or more than a gigabyte.
    """
    from dapo_lit.rewards.work import Rendering

    fault = None
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several, and none is the default
        fault = str(error)
    else:
        work = Rendering(
            template=template,
            chats=tuple(tuple(map(dict, chat)) for chat in chats),
            settings={name: str(token) for name, token in tokenizer.special_tokens_map.items()},
            day=(day or today()).isoformat(),
            clock=CLOCK,
            add_generation_prompt=add_generation_prompt,
        )
        outcome = ask(work, RENDER_S * (1 + len(chats) / 100))
        fault = f"it has not ended after {RENDER_S:g} s" if outcome.timed_out else outcome.error
    if fault is not None:
        raise ChatTemplateError(
            f"the chat template of the tokenizer {tokenizer.name_or_path} fails ({' '.join(fault.split())}); correct "
            "chat_template in the model's folder, or choose a text template (task.template=plain)"
        )
    texts: list[str] = outcome.result
    return texts


def asks_for_time(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """True if the tokenizer's chat template writes the date."""
    return CLOCK in str(tokenizer.chat_template)
