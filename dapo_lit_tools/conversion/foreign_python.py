"""The settings in a Python script of TRL's, read as text: nothing is imported or run.

Arguments of its calls that are plain values, names of such, or mappings of them; anything else is a `Code`.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ablations.errors import one_line
from ablations.texts import DEEPEST, size_fault
from dapo_lit.config import ConfigError
from dapo_lit_tools.conversion.conversion import Code

Settings = dict[str, Any]


def python_settings(text: str, place: Path) -> Settings:
    """The arguments of GRPOConfig, GRPOTrainer, LoraConfig and get_soft_overlong_punishment in a Python script."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{place}: no Python ({one_line(str(error).splitlines())})") from None
    _check_tree(tree, place)
    names = _names(tree)
    found: Settings = {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        match call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", ""):
            case "GRPOConfig" | "GRPOTrainer" as name:
                found |= _arguments(call, PLACES[name], names)
            case name if name == PENALTY:
                # Those that are not said are not known: nothing here is the same by default.
                found |= dict.fromkeys(PLACES[name], Code(_shown(call))) | _arguments(call, PLACES[name], names)
                found[PENALTY] = True
            case "LoraConfig":
                taken = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
                         "target_modules": "lora_target_modules"}  # fmt: skip
                for key, value in (LORA | _arguments(call, (), names)).items():
                    found[taken.get(key, key if key.startswith("*") else f"LoraConfig.{key}")] = value
                found["use_peft"] = True
    # Values by their names may hold each other many times over.
    if fault := size_fault(found, MOST_NODES):
        raise ConfigError(f"{place}: cannot be read ({fault})")
    # The trainer's is the call that is read on its own.
    found.pop("args", None)
    if "use_peft" in found:
        found.pop("peft_config", None)
    if not found:
        raise ConfigError(
            f"{place}: no GRPOConfig(...) or GRPOTrainer(...) in it; for a script with arguments give its command line"
        )
    return found


MOST_NODES = 30_000
"""Parts of a script; TRL's own have 3,000."""


def _check_tree(tree: ast.AST, place: Path) -> None:
    """Raises ConfigError for a script that is larger, deeper or has larger numbers than any of TRL's."""
    level, nodes = [tree], 0
    for _ in range(DEEPEST):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        for node in level:
            if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > 64:
                raise ConfigError(f"{place}, line {node.lineno}: has a whole number beyond 64 bits")
        nodes += len(level)
        if not level:
            return
        if nodes > MOST_NODES:
            raise ConfigError(f"{place}: has more than {MOST_NODES:,} parts, which no script of TRL's has")
    raise ConfigError(f"{place}: is nested too deep")


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
    return {f"{stars}{_shown(node).lstrip('*')}": Code(_shown(node))}


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
                names[name] = Code(_shown(node.value)) if name in changed else mapping
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
        return plain(node)
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
        return Code(_shown(node)) if any(isinstance(one, Code) for one in inner) else inner
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in names:
        return _shown(node)
    return Code(_shown(node))


MOST_SHOWN = 100


def _shown(node: ast.expr) -> str:
    """An expression as text; one of more than MOST_SHOWN parts by its line, as it may be in as many others."""
    if sum(1 for _ in islice(ast.walk(node), MOST_SHOWN + 1)) > MOST_SHOWN:
        return f"the expression in line {node.lineno}"
    return ast.unparse(node)


def _path(dotted: str) -> str:
    return dotted.rpartition(".")[2] if dotted.startswith("trl.") else dotted


def plain(node: ast.expr) -> Any:
    """Raises ValueError: it is no literal, or one that a config cannot hold."""
    value = ast.literal_eval(node)
    json.dumps(value, default=_refuse)
    return value


def _refuse(value: object) -> NoReturn:
    raise ValueError(value)
