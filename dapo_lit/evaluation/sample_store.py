"""The samples of an evaluation on disk, as Parquet with one row a sample.

During an evaluation, finished samples are written to `parts/`, atomically, so that a kill loses seconds of work. At the
end they are merged into `samples.parquet`. Earlier samples are kept: a larger evaluation only adds what is missing.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa

from dapo_lit.evaluation.sampled import EvaluatedSample, Evaluation, SampleName
from dapo_lit.run_files import read_arrow, write_arrow, write_table

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
        ("failed", pa.bool_()),
    ]
)


class SampleFiles:
    """The samples in one folder, which grow while an evaluation runs."""

    def __init__(self, folder: Path) -> None:
        self.merged = folder / "samples.parquet"
        self._parts = folder / "parts"

    def read(self) -> dict[SampleName, EvaluatedSample]:
        """All samples on disk; duplicates that a kill during `merge` left are removed."""
        found: dict[SampleName, EvaluatedSample] = {}
        for file in self._files():
            for row in read_arrow(file, SCHEMA.names).to_pylist():
                sample = EvaluatedSample(**row)
                found.setdefault(sample.name, sample)
        return found

    def append(self, samples: Sequence[EvaluatedSample]) -> None:
        """Writes further samples; they are on disk when this returns."""
        if samples:
            # The name is unique, so a second process in the same folder overwrites nothing.
            self._parts.mkdir(parents=True, exist_ok=True)
            _write(self._parts / f"{time.time_ns()}_{os.getpid()}.parquet", samples)

    def merge(self) -> None:
        """Moves all samples into `samples.parquet`, sorted by problem and sample."""
        files, samples = self._files(), self.read()
        _write(self.merged, sorted(samples.values(), key=lambda s: s.name))
        for part in files:
            if part != self.merged:
                part.unlink()

    def _files(self) -> list[Path]:
        return [*([self.merged] if self.merged.is_file() else []), *sorted(self._parts.glob("*.parquet"))]


def _write(file: Path, samples: Sequence[EvaluatedSample]) -> None:
    write_arrow(file, pa.Table.from_pylist([asdict(sample) for sample in samples], schema=SCHEMA))


def write_evaluation(folder: Path, benchmark: str, step: int, evaluation: Evaluation) -> None:
    """eval/<benchmark>/step_000050.parquet: the samples of an evaluation during training."""
    rows = [asdict(sample) for sample in evaluation.samples]
    (tables := folder / "eval" / benchmark).mkdir(exist_ok=True)
    write_table(tables / f"step_{step:06d}.parquet", pd.DataFrame(rows))
