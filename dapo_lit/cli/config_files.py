"""Files of settings of one's own: how Hydra opens them, and what their interpolations may stand for."""

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import file_config_source as core
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from ablations.texts import DEEPEST, read_text, yaml_tree
from dapo_lit.config import ConfigError, config_folder
from dapo_lit.config.shipped import MOST_BYTES, MOST_VALUES

MOST_WRITTEN_OUT = 1_000_000
"""Characters and values of a config, with every interpolation written out."""

MADE_NAME = re.compile(r"\$\{[^:{}]*\$\{|oc\.(?!env|decode|create)[\w.]+:\s*\$\{")
"""An interpolation whose name is made by another one, so that nobody sees what it stands for."""


class FileConfigSource(core.FileConfigSource):
    """Hydra's reader of config files, under its name, by which Hydra knows that there is one."""

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path)).resolve()
        if not file.exists() or file.is_relative_to(config_folder()):
            return super().load_config(config_path)
        text = read_text(file, MOST_BYTES, ConfigError)
        yaml_tree(text, file, ConfigError, most=MOST_VALUES)
        try:
            config = OmegaConf.load(io.StringIO(text))  # it refuses a key that occurs twice
        except Exception as fault:  # OmegaConf's, PyYAML's, and those of the types of either
            raise ConfigError(f"{file} cannot be read ({' '.join(str(fault).split())[:300]})") from None
        header = self._get_header_dict(text[:512])
        return ConfigResult(config=config, path=f"file://{self.path}", provider=self.provider, header=header)


# Hydra's own is not put in its place: it loads that module a second time, and keeps a reader of the same name.
SourcesRegistry.instance().types["file"] = FileConfigSource


def check_expansion(tree: Mapping[str, Any]) -> None:
    """Raises ConfigError where a composed config (plain values, interpolations unresolved) stands for too much.

    A key that is used twice in the next, which is used twice in the next, and so on, has no end.

    >>> check_expansion({"a": "x" * 1000} | {f"{k}": "${%s}${%s}" % ((k - 1 or "a",) * 2) for k in range(1, 30)})
    Traceback (most recent call last):
    dapo_lit.config.sections.ConfigError: 10: with its interpolations written out it holds more than 1,000,000
    """
    known: dict[str, int] = {}

    def size(node: Any, key: str, depth: int) -> int:
        if depth > DEEPEST:
            raise ConfigError(f"{key[:80]}: interpolations that lead through more than {DEEPEST} others")
        if key in known:
            return known[key]
        known[key] = 0  # one that leads to itself, which OmegaConf refuses
        found = 1
        if isinstance(node, dict | list):
            items = node.items() if isinstance(node, dict) else enumerate(node)
            found += sum(size(value, f"{key}.{name}" if key else str(name), depth + 1) for name, value in items)
        elif isinstance(node, str):
            found += len(node) + sum(size(*target, depth + 1) for target in targets(node, key))
        known[key] = found
        if found > MOST_WRITTEN_OUT:
            raise ConfigError(
                f"{key[:80] or 'settings'}: with its interpolations written out it holds more than {MOST_WRITTEN_OUT:,}"
            )
        return found

    def targets(text: str, key: str) -> Iterator[tuple[Any, str]]:
        """What the interpolations in a text name; an argument of a resolver may be a name too, as of oc.select."""
        if MADE_NAME.search(text):
            raise ConfigError(f"{key[:80]}: the name in an interpolation is made by another one; write the name")
        for inside in re.findall(r"\$\{([^${}]*)", text):
            for name in inside.partition(":")[2].split(",") if ":" in inside else [inside]:
                dots = len(name.strip()) - len(name.strip().lstrip("."))
                path = [*key.split(".")[:-dots], *name.strip()[dots:].split(".")] if dots else name.strip().split(".")
                node: Any = tree
                for part in path:
                    part = part.strip("[]'\"")
                    node = node.get(part) if isinstance(node, Mapping) else None
                if node is not None:
                    yield node, ".".join(path)

    size(dict(tree), "", 0)
