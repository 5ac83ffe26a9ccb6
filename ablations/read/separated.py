"""Tables as text: commas, tabs or semicolons, by the first line; with semicolons a comma may be the decimal sign."""

import csv
import re
from collections.abc import Iterator

SEPARATORS = (",", "\t", ";")
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+")


def separator(text: str) -> str:
    """The separator of a table: of its first line, outside of quotes, the most frequent.

    >>> separator("a;b,c;d"), separator('"a;b","c"'), separator("a")
    (';', ',', ',')
    """
    first = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    return max(SEPARATORS, key=first.count)


def lines_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not empty, with the number of the line. Raises csv.Error."""
    sign = separator(text)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=sign)
    for cells in reader:
        if any(cell.strip() for cell in cells):
            if sign == ";":
                cells = [cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell.strip()) else cell for cell in cells]
            yield reader.line_num, cells
