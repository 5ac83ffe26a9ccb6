"""Rows of a data file with the place each one stands at, so that an error can name it.

JSONL, CSV and Parquet, read lazily. Nothing here knows what a problem is; see sources.py.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".jsonl", ".parquet", ".csv")


class DataError(ValueError):
    """A data file that cannot be used: which file and line, what is wrong, what to do."""


@dataclass(frozen=True)
class Row:
    """One record of a file.

    >>> Row(Path("sums.jsonl"), "line 3", {"problem": "2 + 3"}).error("has no `answer`").args[0]
    'sums.jsonl, line 3: has no `answer`'
    """

    file: Path
    place: str
    """`line 3` (text formats) or `row 3` (Parquet), counted from 1."""
    fields: Mapping[str, object]

    def error(self, what: str) -> DataError:
        return DataError(f"{self.file}, {self.place}: {what}")


def read_rows(file: Path) -> Iterator[Row]:
    """The records of one file, in order.

    Raises DataError for an unknown suffix, and with file and line for a record that cannot be read.
    """
    match file.suffix.lower():
        case ".jsonl":
            return _read_jsonl(file)
        case ".csv":
            return _read_csv(file)
        case ".parquet":
            return _read_parquet(file)
        case other:
            raise DataError(f"{file}: cannot read {other or 'a file without suffix'}; use one of {', '.join(SUFFIXES)}")


def _read_jsonl(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            place = f"line {number}"
            text = _decode(file, place, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw)
            if not text.strip():
                continue
            try:
                fields = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{file}, {place}: not valid JSON ({error.msg} at column {error.colno}); "
                    "every line must be one JSON object"
                ) from None
            except (ValueError, RecursionError) as error:  # integers of thousands of digits, thousands of brackets
                raise DataError(f"{file}, {place}: not readable as JSON ({error})") from None
            if not isinstance(fields, dict):
                raise DataError(f"{file}, {place}: a JSON {type(fields).__name__}; every line must be one JSON object")
            yield Row(file, place, fields)


def _decode(file: Path, place: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, {place}: not UTF-8 (byte {raw[error.start]:#04x}); save the file as UTF-8") from None


def _read_csv(file: Path) -> Iterator[Row]:
    """Every value is text; an empty cell counts as absent."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        start = 1
        try:
            for cells in reader:
                # A quoted cell may hold line breaks: a record is named by the line it begins on.
                place, start = f"line {start}", reader.line_num + 1
                if not cells:
                    continue
                if header is None:
                    header = cells
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"{file}, {place}: {len(cells)} cells where the header has {len(header)}; "
                        "put a cell with commas or line breaks in double quotes"
                    )
                yield Row(file, place, {key: cell for key, cell in zip(header, cells, strict=True) if cell != ""})
        except csv.Error as error:
            raise DataError(f"{file}, line {start}: not valid CSV ({error})") from None
        except UnicodeDecodeError:
            raise DataError(f"{file}, line {start} or after: not UTF-8; save the file as UTF-8") from None


def _read_parquet(file: Path) -> Iterator[Row]:
    number = 0
    for batch in parquet_batches(file):
        for fields in batch.to_pylist():
            number += 1
            yield Row(file, f"row {number}", fields)


def parquet_batches(file: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The file in pieces of bounded size; DataError if it is not Parquet."""
    try:
        with pq.ParquetFile(file) as table:
            yield from table.iter_batches(batch_size=65536, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not readable as Parquet ({error})") from None
