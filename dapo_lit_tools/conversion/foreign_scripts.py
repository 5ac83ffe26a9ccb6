"""The settings in scripts of TRL and verl: command lines, YAML files and Python (foreign_python.py), read as text.

Nothing is imported or run: shell.py walks the tree of a shell script, foreign_python.py that of one in Python. What
only a run could tell stays a `Code`.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.texts import json_tree, read_text, yaml_tree
from ablations.trainer import flatten
from dapo_lit.config import ConfigError
from dapo_lit.config.parsing import other_trainers
from dapo_lit_tools.conversion.conversion import Code, Said, System, word_of
from dapo_lit_tools.conversion.foreign_python import Settings, plain, python_settings
from dapo_lit_tools.conversion.shell import Command, Script, walk
from dapo_lit_tools.conversion.shell_words import Words, is_open

VERL_SECTIONS = (
    "actor_rollout_ref",
    "algorithm",
    "critic",
    "custom_reward_function",
    "data",
    "reward",
    "reward_model",
    "trainer",
)
"""Top sections of verl's config."""


def read_script(file: Path) -> tuple[System, Settings]:
    """The trainer that a file is for, and its settings.

    Raises ConfigError: it cannot be read, or is of neither trainer.
    """
    try:
        # Pictures in a notebook's outputs are not read any further.
        text = read_text(file, 40 * MOST_BYTES if file.suffix == ".ipynb" else MOST_BYTES, ConfigError)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror or error})") from None
    if file.suffix == ".py":
        return "trl", python_settings(text, file)
    if file.suffix == ".ipynb":
        return "trl", python_settings(notebook_code(text, file), file)
    if file.suffix == ".toml":
        raise _of_another("prime-rl or another trainer with TOML files", file)
    if file.suffix in (".yaml", ".yml"):
        return yaml_settings(text, file)
    return command_settings(text, str(file))


def notebook_code(text: str, place: Path) -> str:
    """The code of a notebook's cells, without lines that are no Python (`%pip`, `!nvidia-smi`)."""
    tree = json_tree(text, place, ConfigError)
    cells = tree.get("cells") if isinstance(tree, dict) else None
    if not isinstance(cells, list):
        raise ConfigError(f"{place}: no notebook; it has no cells")
    code: list[str] = []
    for cell in cells:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            lines = "".join(map(str, source)) if isinstance(source, list) else str(source)
            if not lines.lstrip().startswith("%%"):
                code += [line for line in lines.splitlines() if not re.match(r"\s*[%!?]", line)]
    return "\n".join(code)


def command_settings(text: str, place: str) -> tuple[System, Settings]:
    """The settings of a command line, or of a shell script with one."""
    script, words = walk(text, place)
    runs: dict[System, list[tuple[Command, Settings]]] = {"verl": [], "trl": []}
    for command in script.commands:
        refuse_others(words.shown(" ".join(command.words)), place)
        overrides, flags = dict(_overrides(command.words, words)), dict(_flags(command.words, words))
        # A line that starts with a setting is one of its own: the command before it has ended.
        if any(key.split(".")[0] in VERL_SECTIONS for key in overrides) and not OVERRIDE.fullmatch(command.words[0]):
            runs["verl"].append((command, flags_of_hydra(flags) | overrides))
        elif flags and starts_python(command.words):
            runs["trl"].append((command, flags))
    found = runs["verl"] or sorted(runs["trl"], key=lambda run: -_known(run[1]))
    if not found or (not runs["verl"] and not _known(found[0][1])):
        raise ConfigError(
            f"{place}: no settings of verl (actor_rollout_ref.rollout.n=16) and none of TRL (--num_generations 16) "
            "in it"
        )
    system: System = "verl" if runs["verl"] else "trl"
    command, settings = found[0]
    if system == "trl":
        settings = with_config(settings, place)
    return system, settings | remarks(script, command, [other.line for other, _ in runs[system] if other != command])


def remarks(script: Script, command: Command, others: Sequence[int]) -> Settings:
    """What the shell has to do with the settings, by the lines of the script."""
    said: Settings = {}
    if command.branch:
        said[f"line {command.line}"] = Said(
            f"the command runs in a branch that the script does not decide: {command.branch}"
        )
    if others:
        lines = ", ".join(map(str, sorted({*others})[:5]))
        said["further runs"] = Said(f"this is the first; the commands in line {lines} are not converted")
    for line in script.unread:
        said[f"line {line}"] = Said("cannot be read as bash; look whether a setting is in it")
    for stray in script.commands:
        if OVERRIDE.fullmatch(stray.words[0]):
            said[f"line {stray.line}"] = Said(
                "starts with a setting, as the command above has ended (a comment, or a blank after a backslash): bash "
                "does not pass what follows, and neither does this command"
            )
    for condition, line in script.by_default.items():
        said[f"line {line}"] = Said(f"decided by a default: {condition}; another value takes another branch", "notes")
    return said


def starts_python(words: Sequence[str]) -> bool:
    """Whether a command starts a script in Python, or TRL's own command."""
    return any(word.endswith(".py") or Path(word).name in ("python", "python3", "trl", "torchrun") for word in words)


def _known(settings: Settings) -> int:
    table = other_trainers()["trl"]
    return sum(word_of(key, table) is not None for key in settings)


def flags_of_hydra(flags: Settings) -> Settings:
    """A config by its name, which a script of verl's may start from."""
    name = flags.get("config_name")
    return (
        {}
        if name is None
        else {"--config-name": Said(f"the script starts from its config {name}, whose values are not in this command")}
    )


def with_config(settings: Settings, place: str) -> Settings:
    """The settings of the file that `--config` names, and over them those of the command."""
    if not isinstance(name := settings.pop("config", None), str):
        return settings
    folder = Path(place).parent if Path(place).suffix else Path()
    for file in (folder / name, Path(name)):
        try:
            text = read_text(file, MOST_BYTES, ConfigError)
        except OSError:
            continue
        system, inner = yaml_settings(text, file)
        return inner | settings if system == "trl" else settings
    return settings | {"--config": Said(f"{name} is not here, so none of its settings are in this command")}


OTHERS = {
    "NeMo-RL": r"run_(grpo|dapo)\w*\.py .*\b(grpo|loss_fn|cluster)\.|nemo_rl|grpo\.num_prompts_per_step",
    "EasyR1": r"\bworker\.(actor|rollout|reward)\.",
    "open-instruct": r"open_instruct|--num_samples_per_prompt_rollout|--dataset_mixer_list",
    "OpenRLHF": r"openrlhf|--micro_rollout_batch_size|--n_samples_per_prompt\b.*--pretrain",
    "prime-rl": r"prime[_-]rl|\brl @ \S+\.toml",
    "SkyRL": r"skyrl|trainer\.algorithm\.advantage_estimator",
    "slime": r"--rollout-batch-size .*--n-samples-per-prompt|--n-samples-per-prompt .*--rollout-batch-size",
    "ms-swift": r"\bswift (rlhf|sft)\b",
}
"""Other trainers, by what only their commands have."""
SECTIONS_OF_OTHERS = {
    "NeMo-RL": {"grpo", "policy", "cluster"}, "EasyR1": {"worker", "data", "algorithm"}, "prime-rl": {"orchestrator"},
    "SkyRL": {"generator", "trainer", "environment"},
}  # fmt: skip
"""Top sections of their configs, by which a file is theirs."""


def refuse_others(text: str, place: object) -> None:
    """Raises ConfigError for the command of a trainer that is not in the table."""
    for name, mark in OTHERS.items():
        if re.search(mark, text):
            raise _of_another(name, place)


def _of_another(name: str, place: object) -> ConfigError:
    return ConfigError(
        f"{place}: is of {name}, whose settings are not in the table; scripts of verl and TRL are read. Write the "
        "command by hand: docs/configuration.md has every key, docs/coming_from.md the words of two trainers"
    )


def yaml_settings(text: str, place: Path) -> tuple[System, Settings]:
    """The settings of a YAML file: verl's sections, or the arguments of a TRL script (--config)."""
    tree = yaml_tree(text, place, ConfigError)
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{place}: no mapping of keys to values")
    for name, sections in SECTIONS_OF_OTHERS.items():
        if sections <= tree.keys():
            raise _of_another(name, place)
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


MOST_BYTES = 250_000
"""Of a script; the longest of verl's examples has 10,000."""
LONGEST_NUMBER = 40
"""Characters of a number; a longer one is a text."""
OVERRIDE = re.compile(r"[+~]{0,2}((?:\w+\.)+\w+)=(.*)", re.DOTALL)


def _overrides(tokens: Sequence[str], words: Words) -> Iterator[tuple[str, Any]]:
    """Hydra's `section.key=value`."""
    for token in tokens:
        key, equals, value = token.partition("=")
        conditions = words.conditions(key)
        if equals and is_open(words.without_conditions(key)):
            yield f"*{words.shown(token)[:LONGEST_NUMBER]}", Code(words.shown(token))
        elif equals and (match := OVERRIDE.fullmatch(words.shown(token))):
            yield match[1], _open_value(value, words, conditions)


def _open_value(text: str, words: Words, conditions: Sequence[str] = ()) -> Any:
    """A value, or what the script has in the place of one that only a run could tell."""
    if conditions or words.conditions(text):
        return Code(", ".join([words.shown(text), *conditions, *words.conditions(text)]))
    if not is_open(text):
        return _scalar(text)
    # Variables stay for the shell to which the command is given.
    shown = re.sub(r"\$\{(\w+)\}", r"$\1", words.shown(text))
    return shown if re.fullmatch(r"(?:[\w./:~-]|\$\w+)+", shown) else Code(shown)


def _flags(tokens: Sequence[str], words: Words) -> Iterator[tuple[str, Any]]:
    """`--key value`, `--key=value`, `--key` for true, and `--key a b` for a list."""
    name, values, held = "", list[str](), list[str]()
    for token in [*tokens, "--"]:
        conditions = words.conditions(token)
        if words.without_conditions(token).startswith("--") or token.endswith(".py"):
            if name:
                given = [_open_value(value, words, held) for value in values]
                yield name, True if not given else given[0] if len(given) == 1 else given
            key, equals, value = words.without_conditions(token).removeprefix("--").partition("=")
            # The script's own name ends the flags of what starts it.
            name, values = (
                "" if token.endswith(".py") else words.shown(key).replace("-", "_"),
                [value] if equals else [],
            )
            held = conditions
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
