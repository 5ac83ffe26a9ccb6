"""Rows of a data file, each with its place in the file, so that an error can name it.

JSONL, CSV, Parquet and Arrow (as `datasets` saves it), read lazily. What a problem is belongs to sources.py.

Not read by `datasets.load_dataset`, which looks for one type a column and changes reference answers on the way (5.2.0,
JSONL: the text "2024-01-02 03:04:05" becomes a time, 10**20 becomes 1e20, and 2**53 + 1 beside a 2.5 loses its last
digit). It also stops at the first line that it cannot parse, and takes sub-folders for one configuration.
"""

import csv
import datetime
import io
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ablations.errors import DataError
from ablations.texts import opened
from dapo_lit.data.problem import is_number

SUFFIXES = (".jsonl", ".parquet", ".csv", ".arrow")
SHOWN = 20
"""Kinds of faults that a message describes; the others are counted."""
PLACES = 4
"""Bad rows of a kind that a message names; the others are counted."""


class RowError(DataError):
    """One row that cannot be used; the other rows may be fine."""

    def __init__(self, file: Path, place: str, what: str) -> None:
        super().__init__(f"{file}, {place}: {what}")
        self.file, self.place, self.what = file, place, what

    @property
    def kind(self) -> str:
        """What is wrong without the row's own values, so that many rows with one fault are one message."""
        return re.sub(r'"[^"]*"|[-\d.]+', "", self.what)


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

    def value(self, key: str) -> object:
        """The value of a column; `reward_model.ground_truth` is one inside an object. None: there is none.

        >>> Row(Path("sums.jsonl"), "line 3", {"target": {"value": "5"}}).value("target.value")
        '5'
        """
        if key in self.fields:
            return self.fields[key]
        value: object = self.fields
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def error(self, what: str) -> RowError:
        return RowError(self.file, self.place, what)


class BadRows(AbstractContextManager[None]):
    """Collects the bad rows of a data set, so that one message can name them: a line for each kind of fault.

    `with bad_rows:` records a RowError raised inside and continues behind the block.
    """

    def __init__(self) -> None:
        self.count = 0
        self.kinds: dict[str, list[RowError]] = {}
        """The first rows of each kind of fault, and one more where there are more; of the first kinds."""
        self.counts: Counter[str] = Counter()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, RowError):
            return False
        self.count += 1
        self.counts[error.kind] += 1
        if error.kind in self.kinds or len(self.kinds) < SHOWN:
            rows = self.kinds.setdefault(error.kind, [])
            if len(rows) <= PLACES:
                rows.append(error)
        return True

    def check(self, num_good: int) -> None:
        """Raises DataError naming the bad rows, if there are any."""
        if not self.count:
            return
        rows = num_good + self.count
        lines = [self._line(bad, self.counts[kind], rows) for kind, bad in self.kinds.items()]
        if (others := len(self.counts) - len(self.kinds)) > 0:
            lines.append(f"... and {others:,} more kinds of faults")
        if len(lines) > 1:
            lines.append(f"{self.count:,} of {rows:,} rows cannot be used; correct or delete them")
        raise DataError("\n".join(lines))

    @staticmethod
    def _line(bad: Sequence[RowError], count: int, rows: int) -> str:
        """The first row's message, and where else; count: bad rows of this kind, of so many rows."""
        first, *others = bad
        if not others:
            return str(first)
        places = ", ".join(
            one.place if one.file == first.file else f"{one.file} {one.place}" for one in others[: PLACES - 1]
        )
        more = f" and {count - PLACES:,} more" if count > PLACES else ""
        return f"{first} (and {places}{more}, of {rows:,} rows)"


def read_rows(file: Path, bad_rows: BadRows) -> Iterator[Row]:
    """The records of one file, in order; those that cannot be parsed go to `bad_rows`.

    Raises DataError for an unknown suffix and for a file that cannot be read any further.
    """
    match file.suffix.lower():
        case ".jsonl":
            return _read_jsonl(file, bad_rows)
        case ".json":
            return _read_json(file, bad_rows)
        case ".csv":
            return _read_csv(file, bad_rows)
        case ".parquet":
            return _rows(file, _read_parquet(file), "Parquet")
        case ".arrow":
            return _rows(file, _read_arrow(file), "Arrow")
        case other:
            raise DataError(f"{file}: cannot read {other or 'a file without suffix'}; use one of {', '.join(SUFFIXES)}")


def named_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of its pairs of name and value; ValueError for a name that occurs twice.

    `dict` would keep the last, and which one is meant is not known.

    >>> named_once([("answer", "5"), ("answer", "6")])
    Traceback (most recent call last):
    ValueError: has `answer` twice; give one of them another name, or remove it
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"has `{name}` twice; give one of them another name, or remove it")
        found[name] = value
    return found


def _read_jsonl(file: Path, bad_rows: BadRows) -> Iterator[Row]:
    with opened(file, error=DataError) as lines:
        for number, raw in enumerate(lines, start=1):
            row = Row(file, f"line {number}", {})
            if number == 1 and raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise DataError(f"{file}: UTF-16; save the file as UTF-8")
            with bad_rows:
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    byte = error.object[error.start]
                    raise row.error(f"not UTF-8 (byte {byte:#04x}); save the file as UTF-8") from None
                if text.strip():
                    yield replace(row, fields=_json_object(row, text))


def _read_json(file: Path, bad_rows: BadRows) -> Iterator[Row]:
    """An array of rows; other content is read as JSONL. Only a file that is named is read so: in a folder, .json files
    describe a data set."""
    with opened(file, error=DataError) as stream:
        is_array = stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_array:
        yield from _read_jsonl(file, bad_rows)
        return
    try:
        with opened(file, error=DataError) as stream:
            rows = json.loads(stream.read().decode("utf-8-sig"), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not readable as JSON ({error})") from None
    for number, fields in enumerate(rows, start=1):
        row = Row(file, f"row {number}", {})
        with bad_rows:
            if not isinstance(fields, dict):
                raise row.error(f"a JSON {type(fields).__name__}; every row must be one JSON object")
            yield replace(row, fields=fields)


def _json_object(row: Row, text: str) -> dict[str, object]:
    try:
        fields = json.loads(text, object_pairs_hook=named_once)
    except json.JSONDecodeError as error:
        raise row.error(
            f"not valid JSON ({error.msg} at column {error.colno}); every line must be one JSON object"
        ) from None
    # A name that occurs twice, integers of thousands of digits, thousands of brackets.
    except (ValueError, RecursionError) as error:
        raise row.error(f"not readable as JSON ({error})") from None
    if not isinstance(fields, dict):
        raise row.error(f"a JSON {type(fields).__name__}; every line must be one JSON object")
    return fields


def _read_csv(file: Path, bad_rows: BadRows) -> Iterator[Row]:
    """Every value is text; an empty cell counts as absent."""
    with opened(file, error=DataError) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        start = 1
        try:
            for cells in reader:
                # A quoted cell may hold line breaks: a record is named by its first line.
                row, start = Row(file, f"line {start}", {}), reader.line_num + 1
                if not cells:
                    continue
                if header is None:
                    header = cells
                    # pandas names columns 0, 1, ... where they have no names
                    if any(is_number(cell) and cell != str(place) for place, cell in enumerate(cells)):
                        raise DataError(f"{file}: its first line is a row; put names above it, such as problem,answer")
                    other = next((sign for sign in (";", "\t", "|") if sign in "".join(cells[:1])), None)
                    if len(cells) == 1 and other:
                        raise DataError(f"{file}: its columns are separated by {other!r}; save it with commas")
                    try:
                        # A spreadsheet writes columns without a name, which nothing reads.
                        named_once((name, None) for name in header if name)
                    except ValueError as error:
                        raise row.error(f"the header {error}") from None
                    continue
                with bad_rows:
                    if len(cells) != len(header):
                        raise row.error(
                            f"{len(cells)} cells where the header has {len(header)}; "
                            "put a cell with commas or line breaks in double quotes"
                        )
                    yield replace(row, fields={k: cell for k, cell in zip(header, cells, strict=True) if cell})
        except csv.Error as error:
            raise DataError(f"{file}, line {start}: not valid CSV ({error})") from None
        except UnicodeDecodeError:
            raise DataError(f"{file}, line {start} or after: not UTF-8; save the file as UTF-8") from None


def number_text(value: int | float | Decimal) -> str:
    """A finite number by its value, whichever type the column has: no zeros at the end, no point after a whole one.

    >>> [number_text(number) for number in (72, 72.0, Decimal("72.00"), 2.5, Decimal("2.50"), Decimal("-0.0"))]
    ['72', '72', '72', '2.5', '2.5', '0']
    """
    if isinstance(value, Decimal):
        text = f"{value:f}" if value else "0"
        return text.rstrip("0").rstrip(".") if "." in text else text
    # Above 2**53 the digits of a float would be more than are known of the number.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def plain(value: Any) -> Any:
    """A value as JSON has it: times in ISO 8601, bytes as the UTF-8 text that they are, other values that JSON does not
    have as text: a decimal by its value, a UUID.

    >>> plain([datetime.date(2026, 1, 2), {"raw": b"2 + 3"}, b"\\xff", Decimal("42.00")])
    ['2026-01-02', {'raw': '2 + 3'}, {'bytes': 'ff'}, '42']
    """
    return json.loads(json.dumps(value, default=_as_json))


def _as_json(value: Any) -> str | dict[str, str]:
    if isinstance(value, datetime.date | datetime.time):  # pandas' timestamps too
        return value.isoformat()
    if isinstance(value, Decimal):
        return number_text(value)
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        # No text, which a problem or an answer has to be; another column, such as an image, may hold it.
        return {"bytes": value.hex()}


def _shortest(value: Any, kind: pa.DataType) -> Any:
    """The value with its float16 and float32 as the shortest numbers that round to them: 0.1, not 0.10000000149011612.

    >>> _shortest([{"x": 0.10000000149011612}, None], pa.list_(pa.struct({"x": pa.float32()})))
    [{'x': 0.1}, None]
    """
    if value is None:
        return None
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if pa.types.is_struct(kind):
        return {field.name: _shortest(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and not pa.types.is_map(kind):
        return [_shortest(item, kind.value_type) for item in value]
    return value


def _read_arrow(file: Path) -> Iterator[pa.RecordBatch]:
    """A file of `datasets.save_to_disk`, which is a stream of record batches."""
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
        yield from batches


def _read_parquet(file: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as table:
        yield from table.iter_batches()


def _rows(file: Path, batches: Iterator[pa.RecordBatch], form: str) -> Iterator[Row]:
    number = 0
    try:
        for batch in batches:
            # float16 and float32: `float` and `halffloat` in a type's text, also inside of a nested one
            types = named_once((column.name, column.type) for column in batch.schema)
            short = {name: kind for name, kind in types.items() if "float" in str(kind)}
            for number, fields in enumerate(batch.to_pylist(), start=number + 1):  # noqa: B020
                fields |= {key: _shortest(fields[key], kind) for key, kind in short.items()}
                yield Row(file, f"row {number}", {key: plain(value) for key, value in fields.items()})
    # A ValueError: two columns, or two fields of a struct, have one name.
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DataError(f"{file}: not readable as {form} ({error})") from None
