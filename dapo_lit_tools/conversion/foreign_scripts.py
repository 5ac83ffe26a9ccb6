"""The settings in scripts of TRL and verl: command lines, YAML files and Python (foreign_python.py), read as text.

Nothing is imported, run or expanded by a shell. Variables that a script sets to plain values are filled in, and its
integer arithmetic is done; any other expression stays a `Code`.
"""

import ast
import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablations.texts import read_text, yaml_tree
from ablations.trainer import flatten
from dapo_lit.config import ConfigError
from dapo_lit_tools.conversion.conversion import Code, System
from dapo_lit_tools.conversion.foreign_python import Settings, plain, python_settings

VERL_SECTIONS = (
    "actor_rollout_ref",
    "algorithm",
    "critic",
    "custom_reward_function",
    "data",
    "reward_model",
    "trainer",
)
"""Top sections of verl's config."""


def read_script(file: Path) -> tuple[System, Settings]:
    """The trainer that a file is for, and its settings.

    Raises ConfigError: it cannot be read, or is of neither trainer.
    """
    try:
        text = read_text(file, MOST_BYTES, ConfigError)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror or error})") from None
    if file.suffix == ".py":
        return "trl", python_settings(text, file)
    if file.suffix in (".yaml", ".yml"):
        return yaml_settings(text, file)
    return command_settings(text, str(file))


def command_settings(text: str, place: str) -> tuple[System, Settings]:
    """The settings of a command line, or of a shell script with one."""
    tokens = [*shell_tokens(text, place)]
    overrides, flags = dict(_overrides(tokens)), dict(_flags(tokens))
    if any(key.split(".")[0] in VERL_SECTIONS for key in overrides):
        return "verl", overrides
    if flags:
        return "trl", flags
    raise ConfigError(
        f"{place}: no settings of verl (actor_rollout_ref.rollout.n=16) and none of TRL (--num_generations 16) in it"
    )


def yaml_settings(text: str, place: Path) -> tuple[System, Settings]:
    """The settings of a YAML file: verl's sections, or the arguments of a TRL script (--config)."""
    tree = yaml_tree(text, place, ConfigError)
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{place}: no mapping of keys to values")
    # Names of keys may be numbers in YAML.
    if any(key in tree for key in VERL_SECTIONS):
        flat = {key: _scalar(value) for key, value in flatten(_texts(tree)).items()}
        return "verl", {key: _reference(flat, value) for key, value in flat.items() if not key.endswith("_target_")}
    return "trl", {str(key): _scalar(value) for key, value in tree.items()}


def _texts(tree: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _texts(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _reference(flat: Settings, value: Any) -> Any:
    """`${data.max_response_length}` as the value of that key; another text of OmegaConf's as Code."""
    if not isinstance(value, str) or "${" not in value:
        return value
    key = re.fullmatch(r"\$\{([\w.]+)\}", value)
    meant = flat.get(key[1]) if key else None
    return Code(value) if meant is None or (isinstance(meant, str) and "${" in meant) else meant


ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(\w+)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$\{(\w+)(?::?-((?:[^${}]|\$(?!\{))*))?\}|\$(\w+)")
MOST_BYTES = 250_000
"""Of a script; the longest of verl's examples has 10,000."""
LONGEST_LINE = 50_000
"""Characters of a line with what its variables stand for."""
MOST_FILLED = 1_000_000
"""Characters that the variables of a script stand for, in all its lines."""
LONGEST_ARITHMETIC = 200
LONGEST_NUMBER = 40
"""Characters of a number; a longer one is a text."""


def shell_tokens(text: str, place: str) -> Iterator[str]:
    """The words of a shell script as the shell would give them to its commands, in order.

    Of assignments, defaults (`${X:-8}`) and `$(( ))` with integers the values are filled in; `$HOME` and the like, of
    which the script does not say the value, stay as they are.
    """
    variables: dict[str, str] = {}
    left = MOST_FILLED
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        filled, used = _filled_in(line, variables)
        left -= used
        if len(filled) > LONGEST_LINE or left < 0:
            raise ConfigError(
                f"{place}: a line has more than {LONGEST_LINE:,} characters, or its variables stand for more than "
                f"{MOST_FILLED:,}, which is no script"
            )
        try:
            words = shlex.split(filled, comments=True)
        except ValueError:
            # A quotation over several lines: a here-document, or a text of awk.
            words = filled.split()
        assigned = ASSIGNMENT.match(words[-1] if words and words[0] == "export" else words[0]) if words else None
        if assigned and len(words) <= 2 and "." not in assigned[1]:
            variables[assigned[1]] = assigned[2]
        yield from words


def _filled_in(line: str, variables: Mapping[str, str]) -> tuple[str, int]:
    """A line with what its variables and `$(( ))` stand for, up to a length above LONGEST_LINE; and the characters that
    were filled in."""
    filled = 0

    def value(match: re.Match[str]) -> str:
        nonlocal filled
        name, fallback = match[1] or match[3], match[2]
        # Without braces where nothing is known of it, or it would keep a default around it from being read.
        text = variables.get(name, f"${name}" if fallback is None else fallback.strip("\"'"))
        filled += len(text)
        return text if filled <= MOST_FILLED else ""

    # From the inside out: a default may hold another variable. Twelve are more than scripts nest.
    for _ in range(12):
        if len(line) > LONGEST_LINE:
            return line, filled
        before, line = line, VARIABLE.sub(value, line)
        if line == before:
            break
    while (start := line.find("$((")) >= 0 and (end := _closing(line, start + 1)) > 0:
        number = arithmetic(line[start + 3 : end - 1], variables)
        line = f"{line[:start]}{'$[' + line[start + 3 : end - 1] + ']' if number is None else number}{line[end + 1 :]}"
    return line, filled


def _closing(line: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`; -1 if none does within LONGEST_ARITHMETIC."""
    depth = 0
    for place in range(start, min(len(line), start + LONGEST_ARITHMETIC)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place
    return -1


OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def arithmetic(text: str, variables: Mapping[str, str]) -> int | None:
    """What `$((text))` is in a shell: integers of 64 bits, + - * / % and variables; None for anything else.

    >>> arithmetic("(prompt + 1024) * 2", {"prompt": "2048"}), arithmetic("9 ** 9", {})
    (6144, None)
    """

    def of(node: ast.AST) -> int:
        match node:
            case ast.BinOp() if type(node.op) in OPERATORS:
                number = int(OPERATORS[type(node.op)](of(node.left), of(node.right)))
            case ast.UnaryOp(op=ast.USub()):
                number = -of(node.operand)
            case ast.Constant(value=int(number)):
                pass
            case ast.Name(id=name):
                number = int(variables[name])
            case _:
                raise ValueError
        if abs(number) >= 2**63:  # a shell's would wrap around
            raise ValueError
        return number

    try:
        return of(ast.parse(text.strip().replace("$", ""), mode="eval").body)
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


OVERRIDE = re.compile(r"[+~]{0,2}((?:\w+\.)+\w+)=(.*)", re.DOTALL)


def _overrides(tokens: list[str]) -> Iterator[tuple[str, Any]]:
    """Hydra's `section.key=value`."""
    for token in tokens:
        if match := OVERRIDE.fullmatch(token):
            yield match[1], _scalar(match[2])


def _flags(tokens: list[str]) -> Iterator[tuple[str, Any]]:
    """`--key value`, `--key=value`, `--key` for true, and `--key a b` for a list."""
    name, values = "", list[str]()
    for token in [*tokens, "--"]:
        if token.startswith("--"):
            if name:
                given = [_scalar(value) for value in values]
                yield name, True if not given else given[0] if len(given) == 1 else given
            key, equals, value = token.removeprefix("--").partition("=")
            name, values = key.replace("-", "_"), [value] if equals else []
        # The script's own name ends the flags of what starts it.
        elif token.endswith(".py") or token in ("&&", ";", "|"):
            if name:
                given = [_scalar(value) for value in values]
                yield name, True if not given else given[0] if len(given) == 1 else given
            name, values = "", []
        elif name:
            values.append(token.rstrip(","))


def _scalar(value: Any) -> Any:
    """A text as the value that it stands for.

    >>> [_scalar(text) for text in ("1e-6", "False", "null", '["console","wandb"]', "-1", "left")]
    [1e-06, False, None, ['console', 'wandb'], -1, 'left']
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("null", "none", "~", ""):
        return None
    for kind in (int, float):
        try:
            if len(text) <= LONGEST_NUMBER:
                return kind(text)
        except ValueError:
            continue
    if text.startswith(("[", "{", "(")):
        try:
            return plain(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text.strip("[]").split(",") if text.startswith("[") else text
    return text
