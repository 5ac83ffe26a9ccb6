"""A value means what it says: for every key of the schema, values of every kind are taken as they are or refused.

What a key takes is read from its JSON schema here, not from the fields: text is no number, a number is no switch, null
is one only where the schema says so. `make sweeps` draws 20,000 settings
and 2,000 command lines.
"""

import copy
import os
import pickle
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from odd_values import answer, check_answer

from dapo_lit.cli import command
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.cli.overrides import parsed
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.config.identity import flatten, put

SETTINGS, LINES = (20_000, 2_000) if "DAPO_LIT_MATRIX" in os.environ else (1_000, 100)
SEED = int(os.environ.get("DAPO_LIT_SEED", "0"))
SCHEMA = Config.model_json_schema()
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 0.0, 1.0, 2.5, -0.5, 1e3, 10**13, float("inf"), float("nan"), "", "1",
    "0.5", "1e-4", "true", "no", "null", "auto", "Auto", "none", "x", b"1", [], [1], [True], ["1"], [0.9, 0.99],
    [1, 2], [1, 2, 3], {}, {"a": 1}, {"problem": True},
)  # fmt: skip
TEXTS = (
    "null", "None", "true", "True", "false", "yes", "off", "0", "1", "-1", "+3", "7", "007", "0x10", "1_000",
    "1e3", "1e-3", "2.0", "0.5", "-0.5", ".5", "1.", "1e400", "10000000000000", "nan", "inf", "-inf", "'1'",
    "'0.5'", "'true'", "'null'", '"auto"', "auto", "AUTO", "none", "x", "''", "", "1,5", "1 5", "[]", "[1]",
    "[true]", "['1']", "[1,2]", "[0.9,0.99]", "[null]", "{}", "{a:1}", "{a:true}", "${seed}", "${nosuch}",
    "${budget.steps}", "١", "1;2", "a=b", "[1", "{a",
)  # fmt: skip
"""What is typed behind the key."""


def parts(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The kinds of value that a part of a JSON schema allows."""
    if "$ref" in part:
        part = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]]
    for each in part.get("anyOf", ()):
        yield from parts(each)
    if "anyOf" not in part:
        yield part


def keys(part: dict[str, Any] = SCHEMA, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dotted key with its part of the schema, sections included."""
    for name, field in part["properties"].items():
        yield prefix + name, field
        for kind in parts(field):
            if "properties" in kind:
                yield from keys(kind, f"{prefix}{name}.")


def allows(part: dict[str, Any], value: object) -> bool:
    return any(_is(kind, value) for kind in parts(part))


def _is(kind: dict[str, Any], value: Any) -> bool:
    if not kind or set(kind) <= {"title", "description"}:
        return True
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
    types = {
        "null": value is None, "boolean": isinstance(value, bool), "string": isinstance(value, str), "number": number,
        "integer": number and isinstance(value, int), "array": isinstance(value, (list, tuple)),
        "object": isinstance(value, dict),
    }  # fmt: skip
    if not types[kind["type"]] or value not in kind.get("enum", [kind.get("const", value)]):
        return False
    if number:
        limits = {"minimum": "__ge__", "exclusiveMinimum": "__gt__", "maximum": "__le__", "exclusiveMaximum": "__lt__"}
        return all(getattr(float(value), limits[name])(float(kind[name])) for name in limits.keys() & kind.keys())
    if isinstance(value, (list, tuple)):
        each = [*kind.get("prefixItems", ()), *[kind.get("items", {})] * len(value)]
        length = kind.get("minItems", 0) <= len(value) <= kind.get("maxItems", len(value))
        return length and all(allows(part, inner) for part, inner in zip(each, value, strict=False))
    if isinstance(value, dict) and "properties" in kind:
        known = value.keys() <= kind["properties"].keys() and {*kind.get("required", ())} <= value.keys()
        return known and all(allows(kind["properties"][name], inner) for name, inner in value.items())
    if isinstance(value, dict):
        named = all(name in kind.get("propertyNames", {}).get("enum", [name]) for name in value)
        every = kind.get("additionalProperties")
        return named and (not isinstance(every, dict) or all(allows(every, inner) for inner in value.values()))
    return True


def same(given: Any, taken: Any) -> bool:
    """Whether a value was taken as it is; a whole number may have become 1.0, and no options are an empty mapping."""
    if isinstance(given, (list, tuple)):
        return isinstance(taken, (list, tuple)) and len(given) == len(taken) and all(map(same, given, taken))
    if isinstance(given, dict):
        return given.keys() <= taken.keys() and all(same(given[name], taken[name]) for name in given)
    numbers = type(given) is int and type(taken) is float
    if given is None:
        return taken in (None, {})
    return bool(given == taken) and (type(given) is type(taken) or numbers)


def value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part] if tree is not None else None
    return tree


def trees() -> list[dict[str, Any]]:
    """Configs that have every section between them."""
    fork = {"run": "runs/a", "steps": [1], "horizon": 2}
    adapter = {"rank": 4, "alpha": 8.0}
    other = resolved(composed_tree(["+experiment=four_sums", "algorithm=ppo"]))
    put(other, "policy.lora", adapter)
    return [
        resolved(composed_tree(["+study=leave_one_out", "+regime=joint"])),
        other,
        {**copy.deepcopy(other), "fork": fork},
    ]


def test_no_choice_of_the_schema_is_a_number_or_a_switch_which_python_takes_for_each_other():
    choices = [choice for _, field in keys() for kind in parts(field) for choice in kind.get("enum", ())]
    assert {type(choice) for choice in choices} == {str}


def test_every_value_of_another_kind_is_refused_at_every_key_and_every_other_one_is_taken_as_it_is():
    bases, wrong, refused = trees(), [], 0
    pickled = [pickle.dumps(tree) for tree in bases]  # read again in a quarter of the time that a deep copy takes
    for key, field in keys():
        if key.startswith("regime.techniques."):
            continue  # below a name
        section = key.rpartition(".")[0]
        base = next(i for i, tree in enumerate(bases) if not section or value_at(tree, section) is not None)
        for value in ODD:
            tree = pickle.loads(pickled[base])
            put(tree, key, copy.deepcopy(value))
            try:
                taken = parse(tree).model_dump()
            except ConfigError as error:
                refused += 1
                named = key in str(error) and "\n" not in str(error)
                if not named and not allows(field, value):
                    wrong.append((key, value, str(error)))
                continue
            if not allows(field, value) or not same(value, value_at(taken, key)):
                wrong.append((key, value, value_at(taken, key)))
    assert not wrong, (len(wrong), wrong[:20])
    assert refused > 3000


@pytest.mark.parametrize(
    ("name", "value"),
    [("model_type", 1), ("model_type", None), ("tie_word_embeddings", 1), ("tie_word_embeddings", "yes"),
     ("tie_word_embeddings", None), ("head_dim", True), ("head_dim", 4.0), ("num_hidden_layers", "2"),
     ("hidden_size", 48.0), ("rope_theta", True), ("rope_theta", "1e4"), ("rope_theta", 0)],
)  # fmt: skip
def test_a_part_of_an_architecture_that_this_package_reads_is_as_strict_as_a_key(name, value):
    tree = copy.deepcopy(trees()[1])
    put(tree, f"policy.architecture.{name}", value)
    with pytest.raises(ConfigError, match=rf"architecture\.{name}="):
        parse(tree)


def drawn_value(field: dict[str, Any], draw: Random) -> Any:
    """Any value, or one that the key allows."""
    allowed = [value for value in ODD if allows(field, value)]
    return draw.choice(allowed if allowed and draw.random() < 0.7 else ODD)


def test_settings_together_mean_what_they_say_or_are_refused_in_one_line_that_names_one_of_them():
    bases, fields, draw, count = trees(), dict(keys()), Random(SEED), {True: 0, False: 0}
    known = [flatten(base).keys() & fields.keys() for base in bases]
    for _ in range(SETTINGS):
        index = draw.randrange(len(bases))
        given = {
            key: drawn_value(fields[key], draw) for key in draw.sample(sorted(known[index]), draw.choice([1, 2, 3]))
        }
        tree = copy.deepcopy(bases[index])
        for key, value in given.items():
            put(tree, key, copy.deepcopy(value))
        try:
            taken = parse(tree).model_dump()
        except ConfigError as error:
            text = str(error)
            assert "\n" not in text, (given, text)
            assert any(key.rpartition(".")[2] in text for key in given), (given, text)
            count[False] += 1
            continue
        count[True] += 1
        for key, value in given.items():
            assert allows(fields[key], value), (given, key)
            assert same(value, value_at(taken, key)), (given, key)
    assert min(count.values()) > SETTINGS / 20, count


def drawn_lines(draw: Random) -> Iterator[list[str]]:
    keys_of_a_run = flatten(resolved(composed_tree(["+regime=joint"])))
    leaves = [key for key in keys_of_a_run if not key.startswith("regime.techniques")]
    while True:
        yield [f"{key}={draw.choice(TEXTS)}" for key in draw.sample(leaves, draw.choice([1, 1, 2, 3]))]


def test_a_command_line_means_what_it_says_or_is_refused_in_one_line_that_names_the_key(monkeypatch):
    fields, ran, count = dict(keys()), [], {0: 0, 2: 0}
    for line, _ in zip(drawn_lines(Random(SEED)), range(LINES), strict=False):
        del ran[:]
        monkeypatch.setattr("sys.argv", ["train", "+regime=joint", *line])
        found = answer(lambda _: command.run_command(lambda config, _: ran.append(config), Config, "config"))
        check_answer(found, str(line))
        code, _, errors = found
        count[code] += 1
        assert bool(ran) == (code == 0), (line, found)
        if code == 0:
            tree = ran[0].model_dump()
            for setting in line:
                override = parsed(setting)
                key, value = override.key_or_group, override.value()
                if "${" in str(value):
                    value = value_at(tree, value[2:-1])
                assert allows(fields.get(key, {}), value), (line, value)
                assert same(value, value_at(tree, key)) or (key, value) == ("task.options", None), (line, value)
        else:
            # a fault between two keys names the section first; one in a free mapping, the mapping
            names = [name for setting in line for name in setting.partition("=")[0].rpartition(".")[::2]]
            assert any(name in errors for name in names if name) or "nosuch" in errors, (line, errors)
    assert min(count.values()) > LINES / 50, count


@pytest.mark.parametrize("seed", ["one", "1e3", "null", "2.5", "[1]"])
def test_a_wrong_value_that_others_are_made_of_is_named_by_its_own_key(seed):
    with pytest.raises(ConfigError, match=r"^seed: .*integer.* (\S+|a list of 1)(; write 1000)?$"):
        command.compose("+regime=joint", f"seed={seed}")
