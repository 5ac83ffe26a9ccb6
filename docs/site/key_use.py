"""What each key of a config is there for: who gives it another value than the default run, and which page names it.

    python docs/site/key_use.py            # every key with its uses
    python docs/site/key_use.py --unused   # keys that nothing uses: each should be a constant with its reason

- studies: folders of packed cells in which the key has two values or more, counted over their arms and seeds
- configs: files of conf/ that set it to another value than the default run has
- pages: docs, READMEs and tutorials that name it, in whole or as `key=` with its last section
- trainers: those whose key of the same meaning is in dapo_lit/config/other_trainers.yaml
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ablations.trainer import flatten  # noqa: E402
from dapo_lit.cli.config_tree import composed_tree, resolved  # noqa: E402
from dapo_lit.config.identity import kinds, schema_key, with_defaults  # noqa: E402
from dapo_lit.config.parsing import STARTS, other_trainers  # noqa: E402
from dapo_lit.config.shipped import config_folder  # noqa: E402

OTHER_SCHEMAS = ("evaluate", "export", "plan")
"""Files of conf/ for commands that run no training."""
NOT_SCIENCE = ("seed", "study_name", "runs_dir", "study", "regime", "fork")
"""Keys that every cell has by itself; that they vary says nothing."""


VARIED = Path(__file__).with_name("varied_keys.json")
"""Made by docs/site/made.py."""


@dataclass(frozen=True)
class Use:
    studies: tuple[str, ...]
    configs: tuple[str, ...]
    pages: tuple[str, ...]
    trainers: tuple[str, ...]

    @property
    def any(self) -> bool:
        return bool(self.studies or self.configs or self.pages or self.trainers)

    def words(self) -> str:
        """The most telling uses, in a few words: studies, then configs, then pages, then other trainers' keys."""
        for kind, found in (("", self.studies), ("conf/", self.configs), ("", self.pages)):
            if found:
                more = f" and {len(found) - 2} more" if len(found) > 2 else ""
                return ", ".join(kind + one for one in found[:2]) + more
        return f"scripts of {', '.join(self.trainers)} only" if self.trainers else ""


@cache
def varied() -> dict[str, tuple[str, ...]]:
    """Key -> the studies whose packed cells have more than one value of it, as last counted."""
    return {key: tuple(studies) for key, studies in json.loads(VARIED.read_text(encoding="utf-8")).items()}


def counted() -> str:
    """What VARIED has: read off every packed cell, which takes pandas; the site's environment has none."""
    import pandas as pd

    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "experiments").rglob("cells.parquet")):
        study = file.relative_to(ROOT / "experiments").parts[0]
        values: dict[str, set[object]] = {}
        for text in pd.read_parquet(file, columns=["config"])["config"].drop_duplicates():
            # By the dotted key as it is: two keys of a free mapping (task.options) are not two values of it.
            for key, value in flatten(with_defaults(json.loads(text))).items():
                values.setdefault(key, set()).add(json.dumps(value) if isinstance(value, list | dict) else (value,))
        for key, several in values.items():
            if len(several) > 1 and key.split(".")[0] not in NOT_SCIENCE:
                found.setdefault(schema_key(key), set()).add(study)
    return json.dumps({key: sorted(studies) for key, studies in sorted(found.items())}, indent=1) + "\n"


@cache
def set_in_conf() -> dict[str, tuple[str, ...]]:
    """Key -> files of conf/ that set it, those of the default run left out."""
    default = flatten(resolved(composed_tree([])))
    found: dict[str, list[str]] = {}
    for file in sorted(config_folder().rglob("*.yaml")):
        name = file.relative_to(config_folder()).with_suffix("").as_posix()
        group = name.partition("/")[0]
        if name in OTHER_SCHEMAS or group == "benchmark":
            continue
        tree = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        whole = "/" not in name or group in ("experiment", "regime", "study")  # their keys are dotted from the top
        settings = {key: value for key, value in tree.items() if key != "defaults"}
        for key, value in flatten(settings, "" if whole else f"{group}.").items():
            known = schema_key(key)
            if known not in default or default[known] != value:
                found.setdefault(known, []).append(name)
    return {key: tuple(dict.fromkeys(files)) for key, files in found.items()}


def _pages() -> Iterator[tuple[str, str]]:
    places = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").glob("*/README.md")]
    for file in sorted(places):
        if file.name != "CHANGELOG.md":
            yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")


@cache
def named() -> dict[str, tuple[str, ...]]:
    """Dotted word or `key=` -> the pages that have it."""
    found: dict[str, list[str]] = {}
    for page, text in _pages():
        for word in set(re.findall(r"[a-z_0-9]+(?:\.[a-z_0-9]+)+|[a-z_0-9]+(?==)|(?<=`)[a-z_0-9]+(?=`)", text)):
            found.setdefault(word, []).append(page)
    return {word: tuple(pages) for word, pages in found.items()}


@cache
def elsewhere() -> dict[str, tuple[str, ...]]:
    """Key -> the trainers that have one of its meaning."""
    found: dict[str, list[str]] = {}
    for trainer, keys in other_trainers().items():
        for entry in keys.values() if trainer != STARTS else ():
            meant = entry if isinstance(entry, str) else entry["key"]
            found.setdefault(meant, []).append(trainer)
    return {key: tuple(dict.fromkeys(trainers)) for key, trainers in found.items()}


@cache
def last_parts() -> Counter[str]:
    """How many keys end in a word."""
    return Counter(key.rpartition(".")[2] for key in kinds())


def use_of(key: str) -> Use:
    """The uses of a dotted key."""
    parts = key.split(".")
    # `clip.high` is algorithm.clip.high, and `carry_over` can be one key only; `high` by itself could be another's.
    shortest = 1 if last_parts()[parts[-1]] == 1 else 2
    words = {".".join(parts[start:]) for start in range(max(1, len(parts) + 1 - shortest))}
    pages = sorted({page for word in words for page in named().get(word, ())})
    # The keys below a mapping of sections (regime.techniques) are set wherever the mapping is.
    configs = set_in_conf().get(key) or set_in_conf().get(schema_key(key), ())
    if key.startswith("regime.techniques."):
        configs = set_in_conf().get("regime.techniques", ())
    return Use(varied().get(key, ()), configs, tuple(pages), elsewhere().get(key, ()))


def main() -> None:
    from tables import key_names

    names = list(key_names())
    uses = {key: use_of(key) for key in names}
    unused = [key for key, use in uses.items() if not use.any]
    only = "--unused" in sys.argv
    for key, use in uses.items():
        if only and use.any:
            continue
        parts = (f"{kind}: {', '.join(found)}" for kind, found in vars(use).items() if found)
        print(f"{key}\n" + "".join(f"    {part[:200]}\n" for part in parts), end="")
    counts = ", ".join(
        f"{kind} {sum(bool(getattr(use, kind)) for use in uses.values())}" for kind in Use.__dataclass_fields__
    )
    print(f"{len(names)} keys; used by {counts}; by none of them {len(unused)}")


if __name__ == "__main__":
    main()
