"""A model's safetensors: where each tensor is, and what is wrong with files that are damaged or of another model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

Shape = tuple[int, ...]


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """An open safetensors file; an OSError with its path if it is not whole."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, FileNotFoundError) as error:
        raise OSError(f"policy.path: {file} is missing, truncated or damaged ({error}); copy it again") from None


def files_of_tensors(folder: Path) -> dict[str, Path]:
    """The file of every tensor in a folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    places: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with opened(file) as tensors:
            places |= dict.fromkeys(tensors.keys(), file)
    return places


def check_headers(folder: Path, wanted: Mapping[str, Shape]) -> None:
    """Raises OSError unless the files have these tensors in these shapes; reads no weights."""
    places, found = files_of_tensors(folder), dict[str, Shape]()
    for file in sorted({places[name] for name in wanted if name in places}):
        with opened(file) as tensors:
            found |= {name: tuple(tensors.get_slice(name).get_shape()) for name in wanted if places.get(name) == file}
    check_fit(
        folder,
        lacking=sorted(wanted.keys() - found.keys()),
        reshaped=[(name, found[name], shape) for name, shape in wanted.items() if found.get(name, shape) != shape],
    )


def check_fit(
    folder: object, *, lacking: Sequence[str], reshaped: Sequence[tuple[str, Sequence[int], Sequence[int]]]
) -> None:
    """Raises OSError if tensors are not in the files, or (name, in the file, in the model) differ in shape."""
    if reshaped:
        name, found, wanted = min(reshaped)
        fault = f"{len(reshaped)} tensors have other shapes, such as {name}, {tuple(found)} for {tuple(wanted)}"
    elif lacking:
        fault = f"{len(lacking)} tensors of the model are not in the files, such as {min(lacking)}"
    else:
        return
    raise OSError(
        f"policy.path={folder}: the weights do not fit config.json: {fault}; put the config.json of these weights into "
        "the folder"
    )


def damage(folder: Path, part: str, error: Exception) -> OSError:
    """The error for a `part` of a folder that transformers cannot read; names the first file that is not whole."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with opened(file):
                pass
        except OSError as fault:
            return fault
    reason = " ".join(str(error).split())
    return OSError(
        f"policy.path={folder}: the {part} cannot be read ({type(error).__name__}: {reason[:240]}); copy its "
        "files again, or choose another folder"
    )
