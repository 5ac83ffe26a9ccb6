"""The samples of an evaluation on disk, so that a kill loses seconds and nothing is sampled twice.

While it runs, finished samples go to `parts/`, a file at a time under its final name, so every file there is whole. At
the end they are merged into `samples.parquet`, one row a sample. Nothing of an earlier evaluation is dropped: more
problems or more samples a problem add to what is there.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dapo_lit.evaluation.sampled import EvaluatedSample, SampleName

SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("question_digest", pa.string()),
        ("sample_index", pa.int64()),
        ("response", pa.string()),
        ("extracted", pa.string()),
        ("correct", pa.bool_()),
        ("timed_out", pa.bool_()),
        ("num_tokens", pa.int64()),
        ("truncated", pa.bool_()),
        ("logprob", pa.float64()),
    ]
)


class SampleFiles:
    """The samples in one folder."""

    def __init__(self, folder: Path) -> None:
        self.merged = folder / "samples.parquet"
        self._parts = folder / "parts"

    def read(self) -> dict[SampleName, EvaluatedSample]:
        """All samples that are on disk; one that a kill left in a part and in the merged file is there once."""
        found: dict[SampleName, EvaluatedSample] = {}
        for file in self._files():
            for row in pq.read_table(file, schema=SCHEMA).to_pylist():
                sample = EvaluatedSample(**row)
                found.setdefault(sample.name, sample)
        return found

    def append(self, samples: Sequence[EvaluatedSample]) -> None:
        """Writes samples that are not yet on disk; they are when this returns."""
        if samples:
            self._parts.mkdir(parents=True, exist_ok=True)
            # Time and process make the name unique: a second process in the same folder costs work, not samples.
            _write(self._parts / f"{time.time_ns()}_{os.getpid()}.parquet", samples)

    def merge(self) -> None:
        """Everything into `samples.parquet`, sorted by problem and sample."""
        files, samples = self._files(), self.read()
        self.merged.parent.mkdir(parents=True, exist_ok=True)
        _write(self.merged, sorted(samples.values(), key=lambda s: s.name))
        for part in files:
            if part != self.merged:
                part.unlink()

    def _files(self) -> list[Path]:
        return [*([self.merged] if self.merged.is_file() else []), *sorted(self._parts.glob("*.parquet"))]


def _write(path: Path, samples: Sequence[EvaluatedSample]) -> None:
    beside = path.with_suffix(".unfinished")
    table = pa.Table.from_pylist([asdict(sample) for sample in samples], schema=SCHEMA)
    with beside.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
