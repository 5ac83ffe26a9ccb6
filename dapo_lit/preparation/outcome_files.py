"""The outcomes of an answer transformation on disk: transformed problems, rejects, and the settings.

Every outcome is written as one line as soon as it is known. A second run with the same settings skips problems that
have a line; a line that a kill cut short is removed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dapo_lit.preparation.transformation import Reject, Transformed


class OtherSettingsError(ValueError):
    """The files already exist and were not written with the same settings."""


class OutcomeFiles:
    """`<output>`, `<output>.rejected.jsonl` and `<output>.settings.json`, open for appending.

    Raises:
        OtherSettingsError: output or rejects exist and come from other settings.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.kept, self.rejected = output, output.with_suffix(".rejected.jsonl")
        record = output.with_suffix(".settings.json")
        existing = [file for file in (self.kept, self.rejected) if file.exists()]
        if existing:
            _check(existing[0], record, settings)
        output.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(settings, indent=2) + "\n")
        self.outcomes = {row["id"]: _kind(row) for file in existing for row in _whole_rows(file)}
        """Problem id -> `rewritten`, `integer already` or `rejected, <reason>`."""
        self._files = {kept: file.open("a") for kept, file in ((True, self.kept), (False, self.rejected))}

    def write(self, outcome: Transformed | Reject) -> None:
        row = outcome.row()
        file = self._files[isinstance(outcome, Transformed)]
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()
        self.outcomes[row["id"]] = _kind(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()


def _check(file: Path, record: Path, settings: Mapping[str, Any]) -> None:
    if not record.is_file():
        raise OtherSettingsError(f"{file} already exists, without {record.name}; move it away or set another output")
    before = json.loads(record.read_text())
    other = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
    if other:
        raise OtherSettingsError(
            f"{file} already exists, made with other settings ({', '.join(other)}: see {record.name}); "
            "use those settings to continue it, move it away, or set another output"
        )


def _whole_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file; an incomplete last line is removed from it."""
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with file.open("r+b") as cut:
            cut.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _kind(row: Mapping[str, Any]) -> str:
    if "reason" in row:
        return f"rejected, {row['reason']}"
    return "rewritten" if row["rewritten"] else "integer already"
