"""Data sets in the layout of the Hugging Face hub: from a local folder, or from the hub by id.

A data set is a folder of Parquet, JSONL or CSV files whose paths name the configuration and the split:

    main/train-00000-of-00001.parquet       configuration `main`, split `train`
    data/test-00000-of-00002.parquet        no configuration
    problems.jsonl                          no split named anywhere: everything is `train`

A hub id is downloaded into that same layout (huggingface_hub keeps it in its cache, so a second run needs no network).
Data sets that need a loading script, and file lists declared in a README, are not read: name the file itself then.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from dapo_lit.data.rows import SUFFIXES, DataError

# owner/name, owner/name:configuration, owner/name:configuration:split, owner/name::split; each may end in @revision.
HUB_ID = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]*)(?::(?P<split>[\w.-]+))?)?(?:@(?P<revision>[\w./-]+))?"
)
# Of several configurations, the one that is meant where none is named.
DEFAULT_CONFIGURATIONS = ("default", "main")

# The words by which the hub itself recognises a split in a path.
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def resolve_files(path: str, *splits: str) -> tuple[str, list[Path]]:
    """The name of the data set that `path` means, and its files: one file, those of a folder, or those of a hub id.

    splits: the first of them that the folder or hub id has is taken, unless the id names one.
    Raises DataError where there is none.
    """
    local = Path(path).expanduser()
    if local.is_file():
        return local.stem, [local]
    if local.is_dir():
        split, files = _files_of_folder(local, path, None, splits)
        return f"{local.resolve().name}-{split}", files
    found = HUB_ID.fullmatch(path)
    if found is None or local.suffix.lower() in SUFFIXES:
        raise DataError(f"{path}: no such file; set task.path to a .jsonl, .parquet or .csv file, or to a hub id")
    splits, config = (found["split"],) if found["split"] else splits, found["config"] or None
    folder = _download(found["repo"], config, found["revision"], splits)
    split, files = _files_of_folder(folder, path, config, splits)
    return f"{found['repo'].partition('/')[2]}-{split}", files


def choose_files(names: list[str], config: str | None, split: str) -> list[str]:
    """Which of a data set's files (relative paths with `/`) hold one split of one configuration, sorted.

    Raises ValueError where none does, or where a configuration has to be named.

    >>> choose_files(["main/test-0.parquet", "main/train-0.parquet", "socratic/train-0.parquet"], "main", "train")
    ['main/train-0.parquet']
    """
    paths = [PurePosixPath(name) for name in names]
    files = sorted(
        str(path)
        for path in paths
        if path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts)
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
            f"write one behind the hub id (owner/name:{configs[0]}), or name its folder"
        )
    # A split of the user's own (say `hard`) is found by its own word.
    chosen = [name for name in files if split in _splits_named(name) or split in _words(PurePosixPath(name).stem)]
    splits = set().union(*map(_splits_named, files))
    if not chosen and not splits and split == "train":
        return files
    if not chosen:
        raise ValueError(f"has no split {split!r}; it has {', '.join(sorted(splits)) or 'only train'}")
    return chosen


def _configurations(files: list[str]) -> list[str]:
    """Top-level folders that are neither a split nor the customary `data`."""
    folders = {parts[0] for name in files if len(parts := PurePosixPath(name).parts) > 1}
    return sorted(folder for folder in folders if folder != "data" and not _splits_named(folder))


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _splits_named(name: str) -> set[str]:
    """The splits that a path names, by the file's own name before its folders'."""
    path = PurePosixPath(name)
    for part in (path.stem, *reversed(path.parts[:-1])):
        words = _words(part)
        splits = {split for split, synonyms in SPLIT_WORDS.items() if words.intersection(synonyms)}
        if splits:
            return splits
    return set()


def _files_of_folder(folder: Path, label: str, config: str | None, splits: Sequence[str]) -> tuple[str, list[Path]]:
    """The first of the splits that is there, and its files."""
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    faults = []
    for split in splits:
        try:
            return split, [folder / name for name in choose_files(names, config, split)]
        except ValueError as error:
            faults.append(str(error))
    raise DataError(f"{label}: the data set {faults[0]}")


def _download(repo: str, config: str | None, revision: str | None, splits: Sequence[str]) -> Path:
    """The data set's folder in the local cache; only the files of the splits where their names tell."""
    words = [word for split in splits for word in SPLIT_WORDS.get(split, (split,))]
    within = f"{config}/*" if config else "*"
    try:
        folder = _snapshot(repo, revision, [f"{within}{word}*{suffix}" for word in words for suffix in SUFFIXES])
        if not any(file.suffix.lower() in SUFFIXES for file in folder.rglob("*")):
            folder = _snapshot(repo, revision, [f"{within}{suffix}" for suffix in SUFFIXES])
        return folder
    except RepositoryNotFoundError:
        raise DataError(
            f"{repo}: neither a file or folder here nor a data set on the hub that this account can read; "
            "check task.path (a private data set needs `hf auth login`)"
        ) from None
    except RevisionNotFoundError:
        raise DataError(f"{repo}: the data set has no revision {revision}; check what follows @ in task.path") from None
    except OSError as error:  # what the hub's client makes of a missing network, its offline mode and HTTP errors
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{repo}: no such file here, and the hub could not be read ({type(error).__name__}: {reason}). "
            "Without a network set task.path to a local file: JSONL with `problem` and `answer`, Parquet or CSV "
            "(for example task.path=data/train.jsonl)"
        ) from None


def _snapshot(repo: str, revision: str | None, patterns: list[str]) -> Path:
    return Path(snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=patterns))
