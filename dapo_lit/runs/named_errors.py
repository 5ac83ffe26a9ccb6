"""Errors of the file system that say which file: a failed write, such as on a full disk, does not name it by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds `path` to an OSError that names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # pyarrow's have a text only
            if str(path) in str(error):
                raise
            raise OSError(f"{path}: {error}") from error
        if error.filename is None:
            error.filename = str(path)
        raise
