"""Files to read, for the tests of data."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes rows (dicts, or lines as they stand) to a file and returns its path."""

    def write(*rows: dict | str, name: str = "rows.jsonl") -> str:
        file = tmp_path / name
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return str(file)

    return write
