"""Tables as Parquet: replaced as a whole, each page with its checksum."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.errors import DamagedError
from ablations.files.atomic import replacing
from ablations.files.manifest import RESTORE, check_file
from ablations.texts import MB, opened

MOST_BYTES = 4000 * MB
"""Of a file, which may hold the samples of a large evaluation."""
MOST_CELLS, MOST_PER_BYTE = 15_000_000, 10
"""Values of a table that is read in any case, and those of another for each byte of its file."""
LARGE, MOST_RATIO = 200 * MB, 50
"""Bytes of a table that is read in any case, and how many times its file's size another may take. The packed samples of
a study of 240 cells with 32 answers to 200 problems have 105 MB of text: names of arms and problems, row by row."""

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


def read_arrow(file: Path, columns: Sequence[str] | None = None, most: int | None = None) -> "pa.Table":
    """A Parquet file, compared with its manifest and its pages with their checksums.

    most: values in it; None: as many as any run writes into a file of its size.

    Raises DamagedError: it cannot be read, is not as it was written, or stands for more than that.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(file, MOST_BYTES) as stream:
        size = os.fstat(stream.fileno()).st_size
    check_file(file)
    with _readable(file):
        about, schema = pq.read_metadata(file), pq.read_schema(file)
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        parts = [group.column(place) for group in groups for place in range(about.num_columns)]
        _check(sum(part.num_values for part in parts), "values", most or max(MOST_CELLS, MOST_PER_BYTE * size))
        room = max(LARGE, MOST_RATIO * size)
        _check(sum(part.total_uncompressed_size for part in parts), "bytes", room)
        # A text that is in the file once may be in every row: such columns are counted before they are written out.
        table = pq.read_table(
            file,
            columns=list(columns) if columns else None,
            page_checksum_verification=True,
            read_dictionary=[
                *{part.path_in_schema for part in parts if part.physical_type == "BYTE_ARRAY"} & {*schema.names}
            ],
        )
        once = [name for name in table.column_names if pa.types.is_dictionary(table[name].type)]
        _check(sum(_written_out(chunk) for name in once for chunk in table[name].chunks), "bytes of text", room)
        for name in once:
            kind = schema.field(name).type
            # The file itself may call them categories: what reads it wants plain texts.
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            table = table.set_column(table.column_names.index(name), name, table[name].cast(plain))
        return table


def _check(found: int, what: str, most: int) -> None:
    if found > most:
        raise ValueError(f"it holds {found:,} {what}; at most {most:,} are read")


def _written_out(texts: "pa.DictionaryArray") -> int:
    """The bytes of texts that a file holds once each, with every row's own."""
    import pyarrow.compute as pc

    lengths = pc.take(pc.binary_length(texts.dictionary), texts.indices)
    return int(pc.sum(lengths.cast("int64")).as_py() or 0)


def column_names(file: Path) -> list[str]:
    """Raises DamagedError: the file cannot be read."""
    import pyarrow.parquet as pq

    with _readable(file):
        return list(pq.read_schema(file).names)


def read_table(file: Path, columns: Sequence[str] | None = None, most: int | None = None) -> "pd.DataFrame":
    """As `read_arrow`."""
    table = read_arrow(file, columns, most)
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
