"""The border: what comes from outside becomes a value of a declared type here, or one line that says why it does not.

    checked(tree, Plan, folder / "study.json")
    StudyError: runs/table1/study.json: seeds.3 is 'a'; it must be a valid integer

Plans, records of runs, manifests, rows of metrics, packed cells, stored samples and the logs of other trainers pass it,
as plain values that `texts.py` has read. A class declares its fields with the types below; nothing is coerced. Readers
behind the border trust the class and have no guards of their own. A checksum is no type: it says that a file is as
somebody wrote it, whoever that was.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from datetime import date, datetime
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from ablations.errors import DamagedError, UserError, one_line
from ablations.metrics import own_unit

if TYPE_CHECKING:
    import pandas as pd

LONGEST_NAME = 200
"""Bytes; file systems allow 255, and an older run gets an ending."""


def _folder(name: str) -> str:
    """The validator of every key that becomes a folder: it stays below the place where runs or results go."""
    path = PurePath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is not a folder below runs_dir; give a plain name, another place as runs_dir")
    if not name.isprintable() or any(len(part.encode()) > LONGEST_NAME for part in path.parts):
        raise ValueError(f"{name!r} names a folder, so it is one line of at most {LONGEST_NAME} bytes")
    return name


def _name(name: str) -> str:
    if "/" in name:
        raise ValueError(f"{name!r} names one folder, without /")
    return _folder(name)


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:  # its own ValueError says what the text is
        raise ValueError(f"{text!r} names no time zone")
    return text


def _day(text: str) -> str:
    date.fromisoformat(text)
    return text


FolderName = Annotated[str, AfterValidator(_name)]
"""A text that becomes the name of a folder."""
FolderNames = Annotated[str, AfterValidator(_folder)]
"""A text that becomes a folder, or one in another: `mine/first`."""

MOST_STEPS = 10**12
LARGEST_WHOLE = 2**53
"""float64 has every whole number up to here: what tables and pages hold as such is exact."""
LARGEST = 3.4028234e38
"""What a float32 holds; a measured number beyond it counts as infinite."""
Whole = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
Seed = Annotated[int, Strict(), Field(ge=0, le=LARGEST_WHOLE)]
Step = Annotated[int, Strict(), Field(ge=0, le=MOST_STEPS)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Moment = Annotated[str, AfterValidator(_moment)]
"""A date and time with its zone, as ISO 8601 writes them."""
Day = Annotated[str, AfterValidator(_day)]
Seeds = Annotated[tuple[Seed, ...], Field(max_length=10_000)]
Texts = Annotated[tuple[str, ...], Field(max_length=10_000)]

EXACT = ConfigDict(extra="forbid")
"""For `with_config`, of a class whose fields are all there may be."""
OPEN = ConfigDict(extra="allow")
"""The setting of a class that later versions may add fields to."""

T = TypeVar("T")


def checked(value: object, kind: type[T], place: object, error: type[UserError] = DamagedError, remedy: str = "") -> T:
    """`value`, parsed from JSON, YAML or Parquet, as `kind`: a dataclass, a TypedDict or a container of plain values.

    place: the file, and the line or the entry in it.
    remedy: what to do, at the end of the message.

    Raises `error`: one line with the place, the field, its value and what it must be.
    """
    try:
        return cast(T, _adapter(cast(Hashable, kind)).validate_python(value))
    except ValidationError as faults:
        # a text that resembles a number takes Python thousands of digits to show
        raise error(f"{place}: {one_line(map(fault_in_words, faults.errors()))}{remedy}") from None
    except RecursionError:
        raise error(f"{place}: it is nested too deep{remedy}") from None


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


WORDS = {"a valid dictionary": "a mapping", "a valid integer": "an integer", "a valid tuple": "a list", "valid ": ""}
"""In pydantic's messages."""


def fault_in_words(fault: Any) -> str:
    """One of pydantic's errors: the field, what it is and what it must be."""
    field = ".".join(map(str, fault["loc"]))
    limits = fault.get("ctx") or {}
    match fault["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{field} is unknown here"
        case "too_long":
            return f"{field} has more than {limits['max_length']:,} entries"
        case "value_error":
            return f"{field}: {limits['error']}".removeprefix(": ")
        case _:
            return f"{field or 'it'} is {short(fault['input'])}; it must be {must_be(fault)}"


def must_be(fault: Any) -> str:
    """What a value must be by one of pydantic's errors."""
    must = str(fault["msg"]).removeprefix("Input should be ").partition(" or instance of ")[0]
    for theirs, ours in WORDS.items():
        must = must.replace(theirs, ours)
    return must


def short(value: object) -> str:
    """A value as a message shows it."""
    if isinstance(value, (dict, Mapping)):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    text = f"{value:.3g}" if isinstance(value, float) else repr(value) if not isinstance(value, int) else _digits(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _digits(value: int) -> str:
    return str(value) if abs(value) < 10**20 else f"{'-' if value < 0 else ''}10^{int(math.log10(abs(value)))} or so"


# Tables. ----------------------------------------------------------------------------------------------------------

SHARES = ("accuracy", "_frac")
OWN_SHARES = ("rollout/", "eval/", "batch/")
"""Groups whose shares are this package's; a reward or a loss of one's own may call anything `accuracy`."""
MOST_COLUMNS = 1000
"""A run of ours has a hundred metrics; a report compares the arms on each."""


def is_share(key: str) -> bool:
    """True for a metric that is a share, which lies between 0 and 1 and is printed in points of a hundred."""
    own = own_unit(key)
    return own == "%" if own is not None else "@" in key or key.endswith(SHARES)


def _texts(column: "pd.Series") -> str | None:
    known = not column.isna().any() if column.dtype == "string" else all(isinstance(value, str) for value in column)
    return None if known else "a text in every row"


def _whole(column: "pd.Series") -> str | None:
    whole = not len(column) or (column.dtype.kind in "iu" and column.min() >= 0 and column.max() <= LARGEST_WHOLE)
    return None if whole else "a whole number, 0 or more, in every row"


def _truth(column: "pd.Series") -> str | None:
    return None if not len(column) or column.dtype == bool else "true or false in every row"


def _numbers(column: "pd.Series") -> str | None:
    if column.dtype.kind not in "fiu":
        return "a number or nothing in every row" if column.notna().any() else None
    if len(column) and float(column.abs().max()) > LARGEST:
        return "finite in every row"
    name = str(column.name)
    if is_share(name) and (name.startswith(OWN_SHARES) or "/" not in name) and not column.isna().all():
        return None if column.min() >= 0 and column.max() <= 1 + 1e-6 else "a share between 0 and 1 in every row"
    return None


def _any(column: "pd.Series") -> None:
    """Whatever is in a column."""


def _verdicts(column: "pd.Series") -> str | None:
    return None if all(value is None or value in (True, False) for value in column) else "true, false or nothing"


def _arrays(kinds: str, of: str) -> "Column":
    def check(column: "pd.Series") -> str | None:
        whole = all(
            getattr(getattr(value, "dtype", None), "kind", "-") in kinds and value.ndim == 1 for value in column
        )
        return None if whole else f"a list of {of} in every row"

    return check


ANY, TEXT, WHOLE, TRUTH, NUMBER, VERDICT = _any, _texts, _whole, _truth, _numbers, _verdicts
IDS, LOGPROBS, REWARDS = _arrays("iu", "token ids"), _arrays("f", "log-probs"), _arrays("f", "rewards")
Column = Callable[["pd.Series"], str | None]
"""Says what every row of a column must be where some is not."""


def checked_table(
    table: "pd.DataFrame",
    columns: Mapping[str, Column],
    place: object,
    error: type[UserError] = DamagedError,
    *,
    others: Column | None = None,
    key: tuple[str, ...] = (),
) -> "pd.DataFrame":
    """A table whose columns have these kinds.

    others: the kind of all further columns; None: they are left out.
    key: columns that name a row; no two rows have one name.

    Raises `error`: one line with the file, the column and what it must be.
    """
    names = list(table.columns)
    if odd := [name for name in names if not isinstance(name, str)]:
        raise error(f"{place}: column {short(odd[0])} has no name")
    if len(names) > MOST_COLUMNS:
        raise error(f"{place}: has {len(names):,} columns; at most {MOST_COLUMNS:,} are read")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise error(f"{place}: has the column {twice[0]} twice")
    if lacking := [name for name in columns if name not in names]:
        raise error(f"{place}: has no column {lacking[0]}")
    for name in names:
        kind = columns.get(name, others)
        if kind and (must := kind(table[name])):
            raise error(f"{place}: column {short(name)} must be {must}")
    if key and (doubled := table[list(key)].duplicated()).any():
        row = table.loc[doubled.to_numpy(), list(key)].iloc[0]
        raise error(f"{place}: has two rows of {', '.join(f'{name} {row[name]}' for name in key)}")
    return table if others else table[list(columns)]
