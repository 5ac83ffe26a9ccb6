"""The settings in a Python script of TRL's, read as text: nothing is imported or run.

Arguments of its calls that are plain values, names of such, or mappings of them; anything else is a `Code`.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from ablations.errors import one_line
from ablations.texts import DEEPEST, size_fault
from dapo_lit.config import ConfigError
from dapo_lit_tools.conversion.conversion import Code, Said

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
        match _called(call):
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
            case "from_pretrained":
                quantized = {str(word.arg) for word in call.keywords} & {
                    "quantization_config",
                    "load_in_4bit",
                    "load_in_8bit",
                }
                found |= dict.fromkeys(quantized, Code(_shown(call)))
    found |= _set_later(tree, calls, names)
    # Values by their names may hold each other many times over.
    if fault := size_fault(found, MOST_NODES):
        raise ConfigError(f"{place}: cannot be read ({fault})")
    # The trainer's is the call that is read on its own.
    found.pop("args", None)
    if "use_peft" in found:
        found.pop("peft_config", None)
    parser = next((call for call in calls if _called(call).startswith("parse_args")), None)
    if not any(_called(call) == "GRPOConfig" for call in calls) and (parser or not found):
        reason = (
            f"line {parser.lineno} takes its settings from its command line"
            if parser
            else ("no GRPOConfig(...) or GRPOTrainer(...) in it; for a script with arguments give its command line")
        )
        command = f": dapo-lit convert python {place} --num_generations 8 ..." if parser else ""
        raise ConfigError(f"{place}: {reason}{command}")
    return _with_data(found)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _set_later(tree: ast.Module, calls: Sequence[ast.Call], names: Mapping[str, Any]) -> Settings:
    """Attributes that are assigned to a GRPOConfig after it was made."""
    configs = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) == "GRPOConfig"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in calls:
        if _called(call) == "GRPOTrainer":
            configs |= {
                word.value.id for word in call.keywords if word.arg == "args" and isinstance(word.value, ast.Name)
            }
    found: Settings = {}
    branches = [node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.For, ast.While, ast.Try))]
    inside = {id(inner) for branch in branches for inner in ast.walk(branch)}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attr)], value=value) if (
                name in configs
            ):
                read = _value(value, names)
                found[attr] = Code(f"{_shown(value)}, in a branch, line {node.lineno}") if id(node) in inside else read
    return found


@dataclass(frozen=True)
class Rows:
    """A data set that a script loads."""

    path: str
    part: str = ""
    changed: tuple[str, ...] = ()
    """What the script does to its rows."""


def _with_data(found: Settings) -> Settings:
    """Data sets as the words of TRL's command line for them, and remarks on what is done to their rows."""
    for key, word in (("train_dataset", "dataset_name"), ("eval_dataset", "eval_dataset")):
        rows = found.get(key)
        if not isinstance(rows, Rows):
            continue
        del found[key]
        if word == "dataset_name":
            found[word] = rows.path
            if rows.part:
                found["dataset_config"] = rows.part
        else:
            found[word] = Code(f"{rows.path}{':' if rows.part else ''}{rows.part}")
        if rows.changed:
            steps = ", ".join(rows.changed)
            found[f"{key}, its rows"] = Said(
                f"the script changes them ({steps}), and this command does not: a system prompt or an instruction that "
                "it adds belongs into task.template (docs/tasks.md), a column into task.columns"
            )
    return found


def _rows(node: ast.expr, names: Mapping[str, Any]) -> Rows | None:
    """The data set that an expression is: `load_dataset("owner/name", "part")`, a split of one, or its rows changed."""
    match node:
        case ast.Name(id=name):
            named = names.get(name)
            return named if isinstance(named, Rows) else None
        case ast.Subscript(value=inner):
            return _rows(inner, names)
        case ast.Call(func=ast.Attribute(value=inner, attr=change)) if rows := _rows(inner, names):
            kept = ("shuffle", "select_columns", "remove_columns", "train_test_split", "with_format", "shard")
            step = () if change in kept else (f"{change} in line {node.lineno}",)
            return replace(rows, changed=(*rows.changed, *step))
        case ast.Call() if _called(node) == "load_dataset":
            given = [_value(argument, names) for argument in node.args]
            words = {word.arg: _value(word.value, names) for word in node.keywords}
            path, part = (
                words.get("path", given[0] if given else None),
                words.get("name", given[1] if len(given) > 1 else ""),
            )
            files = words.get("data_files")
            if isinstance(files, str):
                return Rows(files)
            split = words.get("split", "train")
            changed = () if split == "train" else (f"split {split}",)
            if isinstance(path, str) and isinstance(part, str):
                return Rows(path, part, changed)
    return None


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
    """What names mean in a script: plain values, mappings of values, data sets, models by the path that they are loaded
    from, and functions that it imports, by their dotted path."""
    names: dict[str, Any] = {}
    changed = _changed(tree)
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.ImportFrom, ast.Assign, ast.FunctionDef))]
    for node in sorted(nodes, key=lambda node: node.lineno):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            names |= {
                one.arg: Code(one.arg) for one in [*arguments.args, *arguments.kwonlyargs] if one.arg not in names
            }
        elif isinstance(node, ast.ImportFrom):
            if node.module and not node.level:
                names |= {alias.asname or alias.name: Path(f"{node.module}.{alias.name}") for alias in node.names}
        elif len(node.targets) == 1:
            names |= _assigned(node.targets[0], node.value, names, changed)
    return names


def _assigned(target: ast.expr, value: ast.expr, names: Mapping[str, Any], changed: set[str]) -> dict[str, Any]:
    """What an assignment says of its names."""
    if isinstance(target, ast.Tuple):
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            found: dict[str, Any] = {}
            for one, inner in zip(target.elts, value.elts, strict=True):
                found |= _assigned(one, inner, names, changed)
            return found
        given = [one.id for one in target.elts if isinstance(one, ast.Name)]
        model = _model(value, names)
        return {name: model if model is not None and not place else Code(name) for place, name in enumerate(given)}
    if not isinstance(target, ast.Name):
        return {}
    name, mapping = target.id, _mapping(value, names)
    if mapping is not None:
        return {name: Code(_shown(value)) if name in changed else mapping}
    found_value = _rows(value, names) or _model(value, names)
    return {name: _value(value, names) if found_value is None else found_value}


def _model(node: ast.expr, names: Mapping[str, Any]) -> str | None:
    """The path of a model that `from_pretrained` loads."""
    if not (isinstance(node, ast.Call) and _called(node) == "from_pretrained"):
        return None
    given = {word.arg: word.value for word in node.keywords}
    path = node.args[0] if node.args else given.get("model_name", given.get("pretrained_model_name_or_path"))
    value = None if path is None else _value(path, names)
    return value if isinstance(value, str) else None


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
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        # A module's function; what a parser gave is known when its command line is.
        if node.value.id not in names:
            return _shown(node)
        return Code(f"{_shown(node)}, from the command line: give it")
    if (path := _model(node, names)) is not None:
        return path
    if (rows := _rows(node, names)) is not None:
        return rows
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
