"""Commands as text to paste: every value is read back as itself by Hydra, every argument by the shell."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from ablations.trainer import command_words

PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
"""Texts that Hydra reads as they are, but for those that are values of another type."""
OTHER_VALUES = ("null", "true", "false", "nan", "inf")


def command(name: str, *arguments: str) -> str:
    """A command for a shell, as the trainer's are typed.

    >>> command("report", "runs/$(date)").endswith("report 'runs/$(date)'")
    True
    >>> print(command("report", "a=['b+c']").split(" ")[-1])
    "a=['b+c']"
    """
    return " ".join(map(word, [*command_words(name), *arguments]))


def word(text: str) -> str:
    """One word for a shell: in double quotes where it has single ones and nothing that those would let through."""
    return f'"{text}"' if "'" in text and not re.search(r'["$`\\!]', text) else shlex.quote(text)


def setting(key: str, value: object) -> str:
    r"""`key=value` for Hydra, whatever the value holds.

    >>> print(setting("fork.run", "runs/it's (1)"), setting("task.columns", {"answer": "a, b"}))
    fork.run='runs/it\'s (1)' task.columns={answer: 'a, b'}
    """
    return f"{key}={_literal(value)}"


def _literal(value: Any) -> str:
    if hasattr(value, "tolist"):  # a number, a switch or an array of numpy or torch
        value = value.tolist()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple, range)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if value is None or isinstance(value, (bool, int, float)):
        return "null" if value is None else str(value).lower()
    text = str(value)
    if PLAIN.fullmatch(text) and text.lower() not in OTHER_VALUES:
        return text
    text = re.sub(r"(?<!\\)(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf would fill it in
    # Hydra takes a backslash as it is, except before a quote.
    return "'" + re.sub(r"(?<!\\)(\\+)$", r"\1\1", re.sub(r"(?<!\\)(\\*)'", r"\1\1\\'", text)) + "'"
