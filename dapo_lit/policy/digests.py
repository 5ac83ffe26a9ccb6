"""Digests of the files in a model's folder: its weights, with the sizes in config.json, and its tokenizer."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from ablations.texts import json_tree, opened, read_bytes
from dapo_lit.policy.load import weight_map

TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
VOLATILE = ("transformers_version", "_name_or_path")
"""Keys of config.json that name who wrote it, and change when the same model is saved again."""
WHOLE = 1 << 30
"""Bytes of a file that is read whole; 0.7 s of a processor. Larger ones are read in parts."""
PARTS, PART = 256, 1 << 20
"""Number and bytes of the parts, evenly spaced from the first to the last byte."""


def digest_of(pieces: Iterable[bytes]) -> str:
    """16 hexadecimal digits of byte strings, each with its length, so that no two lists run together."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()[:16]


def local_folder(path: str | Path) -> Path | None:
    """The folder of a model on this machine, of a hub id that in the hub's cache; None: it was not downloaded."""
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    cached = try_to_load_from_cache(str(path), "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


def weights_of(folder: Path) -> str:
    """A digest of the weights in a policy's folder."""
    if (weights := weight_map(folder)) is not None:
        # By name, as the order of an index is no part of the model.
        files = sorted(set(weights.values()))
        return digest_of(f"{name} {_file_digest(folder / name)}".encode() for name in files)
    return _file_digest(folder / "model.safetensors")[:16]


def model_of(folder: Path) -> str:
    """A digest of weights and config.json, of a model that was not made here."""
    config = json_tree(read_bytes(folder / "config.json"), folder / "config.json")
    kept = {key: value for key, value in config.items() if key not in VOLATILE}
    return digest_of([weights_of(folder).encode(), json.dumps(kept, sort_keys=True).encode()])


def tokenizer_of(folder: Path, ends: Iterable[int]) -> str:
    """A digest of a tokenizer's files and of the tokens that end a response, which other files name as well."""
    files = [folder / name for name in TOKENIZER]
    files += sorted((folder / "additional_chat_templates").glob("*.jinja"))
    # Names with contents, so that an empty file is not a missing one.
    pieces = [piece for file in files if file.is_file() for piece in (file.name.encode(), read_bytes(file, WHOLE))]
    return digest_of([*pieces, json.dumps(sorted(ends)).encode()])


def _file_digest(file: Path) -> str:
    """SHA-256 of a file; of a large one, of its size and evenly spaced parts, which training changes all over."""
    size, digest = file.stat().st_size, hashlib.sha256()
    with opened(file) as stream:
        if size <= WHOLE:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(size.to_bytes(8, "little"))
        for part in range(PARTS):
            # The last part ends with the file: a file that was cut differs.
            stream.seek(part * (size - PART) // (PARTS - 1))
            digest.update(stream.read(PART))
    return digest.hexdigest()
