"""Data sets in the layout of the Hugging Face hub: from a local folder, or from the hub by id.

A data set is a folder of Parquet, JSONL or CSV files. Their paths name the configuration and the split:

    main/train-00000-of-00001.parquet       configuration `main`, split `train`
    data/test-00000-of-00002.parquet        no configuration
    problems.jsonl                          no split in any name: everything is `train`

A hub id is downloaded into the same layout (huggingface_hub caches it, so a second run needs no network). Data sets
with a loading script and file lists declared in a README are not supported; name the file itself instead.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from huggingface_hub import snapshot_download

from ablations.errors import UserError
from dapo_lit.data.rows import SUFFIXES, DataError


class HubError(UserError):
    """The hub refuses a request or cannot be reached."""


# owner/name, owner/name:configuration, owner/name:configuration:split, owner/name::split; each may end in @revision.
HUB_ID = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]*)(?::(?P<split>[\w.-]+))?)?(?:@(?P<revision>[\w./-]+))?"
)
# Used if there are several configurations and none is named.
DEFAULT_CONFIGURATIONS = ("default", "main")

# The words by which the hub recognises a split in a path.
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def resolve_files(path: str, *splits: str, key: str) -> tuple[str, list[Path]]:
    """The name and the files of the data set at `path`: one file, a folder, or a hub id.

    splits: the first that the folder or hub id has is used, unless the id names one. key: of the config, for messages.
    Raises DataError if there is no such file or split, HubError if the hub does not give the data set.
    """
    local = Path(path).expanduser()
    if local.is_file():
        return local.stem, [local]
    if local.is_dir():
        split, files = _files_of_folder(local, path, None, splits)
        return f"{local.resolve().name}-{split}", files
    found = HUB_ID.fullmatch(path)
    if found is None or local.suffix.lower() in (*SUFFIXES, ".json"):
        raise DataError(f"{path}: no such file; set {key} to a .jsonl, .parquet or .csv file, or to a hub id")
    splits, config = (found["split"],) if found["split"] else splits, found["config"] or None
    folder = _download(found["repo"], config, found["revision"], splits, key)
    split, files = _files_of_folder(folder, path, config, splits)
    return f"{found['repo'].partition('/')[2]}-{split}", files


def choose_files(names: list[str], config: str | None, split: str) -> list[str]:
    """The files (relative paths with `/`) with one split of one configuration, sorted.

    Raises ValueError if there is none, or if a configuration has to be named.

    >>> choose_files(["main/test-0.parquet", "main/train-0.parquet", "socratic/train-0.parquet"], "main", "train")
    ['main/train-0.parquet']
    """
    files = sorted(
        name
        for name in names
        if name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in name.split("/"))
    )
    if not files:
        raise ValueError(f"holds no {', '.join(SUFFIXES)} file")
    configs = _configurations(files)
    if config is None and len(configs) > 1:
        config = next((name for name in DEFAULT_CONFIGURATIONS if name in configs), None)
    if config is not None:
        files = [name for name in files if PurePosixPath(name).parts[0] == config]
        if not files:
            raise ValueError(f"has no configuration {config!r}; it has {', '.join(configs) or 'none'}")
    elif len(configs) > 1:
        raise ValueError(
            f"has the configurations {', '.join(configs)}; "
            f"add one to the hub id (owner/name:{configs[0]}), or name its folder"
        )
    # A custom split (say `hard`) is found by its own name.
    chosen = [name for name in files if split in _splits_named(name) or split in _words(PurePosixPath(name).stem)]
    splits = set().union(*map(_splits_named, files))
    if not chosen and not splits and split == "train":
        return files
    if not chosen:
        raise ValueError(f"has no split {split!r}; it has {', '.join(sorted(splits)) or 'only train'}")
    return chosen


def _configurations(files: list[str]) -> list[str]:
    """Top-level folders other than splits and the conventional `data`."""
    folders = {parts[0] for name in files if len(parts := PurePosixPath(name).parts) > 1}
    return sorted(folder for folder in folders if folder != "data" and not _splits_named(folder))


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _splits_named(name: str) -> set[str]:
    """The splits that a path names; the file name takes precedence over the folders."""
    path = PurePosixPath(name)
    for part in (path.stem, *reversed(path.parts[:-1])):
        words = _words(part)
        splits = {split for split, synonyms in SPLIT_WORDS.items() if words.intersection(synonyms)}
        if splits:
            return splits
    return set()


def _files_of_folder(folder: Path, label: str, config: str | None, splits: Sequence[str]) -> tuple[str, list[Path]]:
    """The first of the splits that exists, and its files."""
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    faults = []
    for split in splits:
        try:
            return split, [folder / name for name in choose_files(names, config, split)]
        except ValueError as error:
            faults.append(str(error))
    raise DataError(f"{label}: the data set {faults[0]}")


def _download(repo: str, config: str | None, revision: str | None, splits: Sequence[str], key: str) -> Path:
    """The data set's folder in the local cache; only the files of the splits, if file names show the split."""
    words = [word for split in splits for word in SPLIT_WORDS.get(split, (split,))]
    within = f"{config}/*" if config else "*"
    try:
        folder = _snapshot(repo, revision, [f"{within}{word}*{suffix}" for word in words for suffix in SUFFIXES])
        if not any(file.suffix.lower() in SUFFIXES for file in folder.rglob("*")):
            folder = _snapshot(repo, revision, [f"{within}{suffix}" for suffix in SUFFIXES])
        return folder
    except OSError as error:  # no such data set or revision, no permission, no network
        raise HubError(
            f"{repo}: no such local file, and the hub gives no such data set ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). Check {key}: a private data set needs `hf auth login`; without a network, "
            "set it to a local JSONL, Parquet or CSV file"
        ) from None


def _snapshot(repo: str, revision: str | None, patterns: list[str]) -> Path:
    return Path(snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=patterns))
