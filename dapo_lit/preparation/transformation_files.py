"""The outcomes of an answer transformation on disk: problems kept, rejects, and the settings that decide both.

Every outcome is one line, written when it is known. Started again with the same settings, problems that have a line are
not asked again; a line that a kill cut short is dropped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dapo_lit.preparation.transformation import Reject, Transformed


class OtherSettingsError(ValueError):
    """The files are there already and come from other settings, or from something else."""


class OutcomeFiles:
    """`<output>`, `<output>.rejected.jsonl` and `<output>.settings.json`, open for more.

    Raises:
        OtherSettingsError: output or rejects are there, and not from a transformation with these settings.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.kept, self.rejected = output, output.with_suffix(".rejected.jsonl")
        record = output.with_suffix(".settings.json")
        there = [file for file in (self.kept, self.rejected) if file.exists()]
        if there:
            _check(there[0], record, settings)
        output.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(settings, indent=2) + "\n")
        self.outcomes = {row["id"]: _kind(row) for file in there for row in _whole_rows(file)}
        """What became of the problems that have a line: id -> `rewritten`, `integer already`, `rejected, <reason>`."""
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
        raise OtherSettingsError(f"{file} is there already, without {record.name}; move it away or set another output")
    before = json.loads(record.read_text())
    other = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
    if other:
        raise OtherSettingsError(
            f"{file} is there already, made with other settings ({', '.join(other)}: see {record.name}); "
            "repeat those to go on with it, move it away, or set another output"
        )


def _whole_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file; what stands after the last line break was cut short by a kill and goes."""
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
