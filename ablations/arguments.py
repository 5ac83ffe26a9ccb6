"""The command line of commands without a config: places, and settings as `key=value` or `--key value`."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ablations.errors import suggestion
from ablations.trainer import command_words

LOG_SYSTEMS = ("trl", "verl", "openrlhf", "prime_rl", "csv")
"""Trainers whose logs can be read: the files in read/key_maps."""


class CommandParser(argparse.ArgumentParser):
    """Reads `output=DIR` like `--output DIR`; a mistake is one line and exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given, known = [self._as_flag(argument) for argument in args], list(self._option_string_actions)
        for flag in (argument.partition("=")[0] for argument in given if argument.startswith("--")):
            # Before a missing one, of which it is a slip.
            if not any(option.startswith(flag) for option in known):
                words = [option.removeprefix("--") for option in known if option.startswith("--")]
                self.error(f"{flag}: no such argument; {suggestion(flag.removeprefix('--'), words, '--{}')}")
        return super().parse_known_args(given, namespace)

    def _as_flag(self, argument: str) -> str:
        """`key=value` as `--key=value` where `key` is a setting of this command; other arguments are unchanged.

        >>> parser = CommandParser()
        >>> _ = parser.add_argument("--show", type=int)
        >>> parser.parse_args(["show=3"]).show
        3
        """
        key, equals, value = argument.partition("=")
        flag = f"--{key.replace('_', '-')}"
        return f"{flag}={value}" if equals and flag in self._option_string_actions else argument

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; --help lists the arguments\n")


def parser_of(name: str, words: str | None) -> CommandParser:
    """The parser of a command, with help that says `ablations NAME` as the trainer's commands are typed."""
    typed = " ".join(command_words(name))
    return CommandParser(prog=typed, description=(words or "").replace(f"ablations {name}", typed))


def add_json(parser: argparse.ArgumentParser) -> None:
    """The setting `json` of a command that prints a table: `--json`, `--json=true` or `json=true`."""
    parser.add_argument(
        "--json", nargs="?", choices=("true", "false"), const="true", default="false",
        help="print JSON, as schemas/ of the package describes it, and no table",
    )  # fmt: skip
