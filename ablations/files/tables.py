"""Tables as Parquet: replaced as a whole, each page with its checksum."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.errors import DamagedError
from ablations.files.atomic import replacing
from ablations.files.manifest import RESTORE, check_file

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raises DamagedError where Parquet cannot be read; a name of a column may be no text."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedError(f"{file} cannot be read ({' '.join(str(error).split())[:200]}); {RESTORE}") from None


def read_arrow(file: Path, columns: Sequence[str] | None = None) -> "pa.Table":
    """A Parquet file, compared with its manifest and its pages with their checksums.

    Raises DamagedError: it cannot be read, or is not as it was written.
    """
    import pyarrow.parquet as pq

    check_file(file)
    with _readable(file):
        return pq.read_table(file, columns=list(columns) if columns else None, page_checksum_verification=True)


def column_names(file: Path) -> list[str]:
    """Raises DamagedError: the file cannot be read."""
    import pyarrow.parquet as pq

    with _readable(file):
        return list(pq.read_schema(file).names)


def read_table(file: Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    table = read_arrow(file, columns)
    with _readable(file):
        return table.to_pandas()


def write_arrow(file: Path, table: "pa.Table", **options: Any) -> None:
    """Replaces a Parquet file; each of its pages has a checksum."""
    import pyarrow.parquet as pq

    with replacing(file) as draft:
        pq.write_table(table, draft, **{"compression": "zstd", "write_page_checksum": True, **options})


def write_table(file: Path, table: "pd.DataFrame") -> None:
    import pyarrow as pa

    write_arrow(file, pa.Table.from_pandas(table, preserve_index=False))
