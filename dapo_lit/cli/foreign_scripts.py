"""The settings in scripts of TRL and verl: command lines, YAML files and Python, read as text.

Nothing is imported, run or expanded by a shell. Variables that a script sets to plain values are filled in, and its
integer arithmetic is done; any other expression stays a `Code`.
"""

import ast
import json
import operator
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dapo_lit.config import ConfigError
from dapo_lit.config.conversion import Code, System
from dapo_lit.config.identity import flatten
from dapo_lit.errors import one_line

Settings = dict[str, Any]

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
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({one_line(str(error).splitlines())})") from None
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
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{place}: no YAML ({one_line(str(error).splitlines())})") from None
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
MOST = 1_000_000
"""Characters of a script; a longer file is none."""


def shell_tokens(text: str, place: str) -> Iterator[str]:
    """The words of a shell script as the shell would give them to its commands, in order.

    Of assignments, defaults (`${X:-8}`) and `$(( ))` with integers the values are filled in; `$HOME` and the like, of
    which the script does not say the value, stay as they are.
    """
    if len(text) > MOST:
        raise ConfigError(f"{place}: {len(text):,} characters, which is no script")
    variables: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        filled = _filled_in(line, variables)
        try:
            words = shlex.split(filled, comments=True)
        except ValueError:
            # A quotation over several lines: a here-document, or a text of awk.
            words = filled.split()
        assigned = ASSIGNMENT.match(words[-1] if words and words[0] == "export" else words[0]) if words else None
        if assigned and len(words) <= 2 and "." not in assigned[1]:
            variables[assigned[1]] = assigned[2]
        yield from words


def _filled_in(line: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, fallback = match[1] or match[3], match[2]
        # Without braces where nothing is known of it, or it would keep a default around it from being read.
        return variables.get(name, f"${name}" if fallback is None else fallback.strip("\"'"))

    # From the inside out: a default may hold another variable. Twelve are more than scripts nest.
    for _ in range(12):
        before, line = line, VARIABLE.sub(value, line)
        if line == before:
            break
    while (start := line.find("$((")) >= 0 and (end := _closing(line, start + 1)) > 0:
        number = arithmetic(line[start + 3 : end - 1], variables)
        line = f"{line[:start]}{'$[' + line[start + 3 : end - 1] + ']' if number is None else number}{line[end + 1 :]}"
    return line


def _closing(line: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`; -1 if none does."""
    depth = 0
    for place in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place
    return -1


OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def arithmetic(text: str, variables: Mapping[str, str]) -> int | None:
    """What `$((text))` is in a shell: integers, + - * / % and variables; None for anything else.

    >>> arithmetic("(prompt + 1024) * 2", {"prompt": "2048"}), arithmetic("9 ** 9", {})
    (6144, None)
    """

    def of(node: ast.AST) -> int:
        match node:
            case ast.BinOp() if type(node.op) in OPERATORS:
                return int(OPERATORS[type(node.op)](of(node.left), of(node.right)))
            case ast.UnaryOp(op=ast.USub()):
                return -of(node.operand)
            case ast.Constant(value=int(number)) if abs(number) < 2**63:
                return number
            case ast.Name(id=name):
                return int(variables[name])
        raise ValueError

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
            return kind(text)
        except ValueError:
            continue
    if text.startswith(("[", "{", "(")):
        try:
            return _plain(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text.strip("[]").split(",") if text.startswith("[") else text
    return text


def python_settings(text: str, place: Path) -> Settings:
    """The arguments of GRPOConfig, GRPOTrainer, LoraConfig and get_soft_overlong_punishment in a Python script."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{place}: no Python ({one_line(str(error).splitlines())})") from None
    names = _names(tree)
    found: Settings = {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        match call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", ""):
            case "GRPOConfig" | "GRPOTrainer" as name:
                found |= _arguments(call, PLACES[name], names)
            case name if name == PENALTY:
                # Those that are not said are not known: nothing here is the same by default.
                found |= dict.fromkeys(PLACES[name], Code(ast.unparse(call))) | _arguments(call, PLACES[name], names)
                found[PENALTY] = True
            case "LoraConfig":
                taken = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
                         "target_modules": "lora_target_modules"}  # fmt: skip
                for key, value in (LORA | _arguments(call, (), names)).items():
                    found[taken.get(key, key if key.startswith("*") else f"LoraConfig.{key}")] = value
                found["use_peft"] = True
    # The trainer's is the call that is read on its own.
    found.pop("args", None)
    if "use_peft" in found:
        found.pop("peft_config", None)
    if not found:
        raise ConfigError(
            f"{place}: no GRPOConfig(...) or GRPOTrainer(...) in it; for a script with arguments give its command line"
        )
    return found


def _arguments(call: ast.Call, places: Sequence[str], names: Mapping[str, Any]) -> Settings:
    """The arguments of a call by their names; with a star before it what holds some whose names are not known.

    places: the names of the first arguments, in the order of the signature.
    """
    found: Settings = {}
    for place, argument in enumerate(call.args):
        if place < len(places) and not any(isinstance(one, ast.Starred) for one in call.args[: place + 1]):
            found[places[place]] = _value(argument, names)
        else:
            found |= _unread(argument, "*")
    for keyword in call.keywords:
        found |= {keyword.arg: _value(keyword.value, names)} if keyword.arg else _inner(keyword.value, names)
    return found


def _unread(node: ast.expr, stars: str) -> Settings:
    return {f"{stars}{ast.unparse(node).lstrip('*')}": Code(ast.unparse(node))}


def _inner(node: ast.expr, names: Mapping[str, Any]) -> Settings:
    """What `**node` stands for, where it is a mapping that the script writes out, there or under a name."""
    if isinstance(node, ast.Name) and isinstance(names.get(node.id), dict):
        return dict(names[node.id])
    found = _mapping(node, names)
    return _unread(node, "**") if found is None else found


def _mapping(node: ast.expr, names: Mapping[str, Any]) -> Settings | None:
    """The settings of `{"key": value, **others}` or `dict(key=value, **others)`; None for anything else."""
    match node:
        case ast.Dict():
            found: Settings = {}
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    found |= _inner(value, names)
                elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found[key.value] = _value(value, names)
                else:
                    found |= _unread(key, "*")
            return found
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            return _arguments(node, (), names)
    return None


def _names(tree: ast.Module) -> dict[str, Any]:
    """What names mean at the top of a script: plain values, mappings of values, and functions that it imports, by their
    dotted path."""
    names: dict[str, Any] = {}
    changed = _changed(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: Path(f"{node.module}.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, mapping = node.targets[0].id, _mapping(node.value, names)
            if mapping is None:
                names[name] = _value(node.value, names)
            else:
                names[name] = Code(ast.unparse(node.value)) if name in changed else mapping
    return names


def _changed(tree: ast.Module) -> set[str]:
    """Names whose value may be changed in its place: `cfg["a"] = 1`, `cfg.update(...)`, `cfg |= ...`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                found.add(name)
    return found


PENALTY = "get_soft_overlong_punishment"
PLACES = {
    "GRPOConfig": ("output_dir",),
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    PENALTY: ("max_completion_len", "soft_punish_cache"),
}
"""The first arguments of TRL's calls in their order; others are given by name in any script."""
LORA = {"r": 8, "lora_alpha": 8}
"""Defaults of peft's LoraConfig, which are not those of TRL's command line."""


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A plain value, the dotted path of a function, or Code."""
    try:
        return _plain(node)
    except ValueError:
        pass
    if isinstance(node, ast.Name) and node.id in names:
        meant = names[node.id]
        if isinstance(meant, dict) and any(isinstance(inner, Code) for inner in meant.values()):
            return Code(node.id)
        # TRL's own rewards go by their name, as on its command line.
        return _path(str(meant)) if isinstance(meant, Path) else meant
    if isinstance(node, (ast.List, ast.Tuple)):
        inner = [_value(element, names) for element in node.elts]
        # The length penalty is in the script as a call of its own.
        inner = [one for one in inner if not (isinstance(one, Code) and one.text.startswith(PENALTY))]
        return Code(ast.unparse(node)) if any(isinstance(one, Code) for one in inner) else inner
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in names:
        return ast.unparse(node)
    return Code(ast.unparse(node))


def _path(dotted: str) -> str:
    return dotted.rpartition(".")[2] if dotted.startswith("trl.") else dotted


def _plain(node: ast.expr) -> Any:
    """Raises ValueError: it is no literal, or one that a config cannot hold."""
    value = ast.literal_eval(node)
    json.dumps(value, default=_refuse)
    return value


def _refuse(value: object) -> NoReturn:
    raise ValueError(value)
