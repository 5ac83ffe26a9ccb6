"""JSON schemas of the YAML files in conf/, made of the sections' fields, for editors that complete and check.

A file of conf/ gives some keys of its group, and Hydra composes the rest: no key is required, `defaults` and `hydra`
are Hydra's, and an interpolation may take the place of any value. What `faults` checks between keys is not in a schema.
"""

from collections.abc import Mapping
from typing import Any

from ablations.techniques import REGISTER
from dapo_lit.config.commands import Benchmark, EvaluateConfig, ExportConfig
from dapo_lit.config.run import Config
from dapo_lit.config.sections import Section, section_of

WHOLE: dict[str, type[Section]] = {"config": Config, "experiment": Config, "regime": Config, "study": Config}
"""Files and groups whose keys are those of a whole run."""
OTHER: dict[str, type[Section]] = {"evaluate": EvaluateConfig, "export": ExportConfig, "benchmark": Benchmark}


def schemas() -> dict[str, dict[str, Any]]:
    """Name of a file or folder in conf/ -> its schema; the command adds those of plan."""
    groups = {name: section for name, field in Config.model_fields.items() if (section := section_of(field.annotation))}
    own = {name: groups[name] for name in ("algorithm", "logger", "policy", "reward", "rollout", "task", "trainer")}
    return {name: schema_of(section) for name, section in (WHOLE | OTHER | own).items()}


def schema_of(section: type[Section]) -> dict[str, Any]:
    """The JSON schema (2020-12) of a file that gives some keys of a section."""
    tree = section.model_json_schema()
    parts = tree.get("$defs", {})
    for part in (tree, *parts.values()):
        _relax(part)
    for switch, field in parts.get("Techniques", {}).get("properties", {}).items():
        field["description"] = REGISTER[switch].description
    tree["properties"] |= {
        "defaults": {"type": "array", "description": "Hydra: the files that this one is built on."},
        "hydra": {"type": "object", "description": "Settings of Hydra's own."},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}


INTERPOLATION = {
    "type": "string", "pattern": r"^(\?\?\?$|.*\$\{.+\})",
    "description": "${other.key}, filled in when the config is composed; ???: to be given",
}  # fmt: skip


def _relax(part: dict[str, Any]) -> None:
    """Takes back what holds for a whole config and not for a file of it."""
    part.pop("required", None)
    for name, field in part.get("properties", {}).items():
        if _is_section(field):
            continue
        described = {key: field[key] for key in ("description", "title") if key in field}
        value = {key: inner for key, inner in field.items() if key not in described}
        part["properties"][name] = {**described, "anyOf": [value, INTERPOLATION]}


def _is_section(field: Mapping[str, Any]) -> bool:
    """True for a section, which no interpolation of conf/ fills in as a whole."""
    return "$ref" in field and set(field) <= {"$ref", "description", "title"}
