"""The samples of an evaluation on disk, as Parquet with one row a sample.

Earlier samples are kept: a larger evaluation only adds what is missing.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ablations.border import checked
from ablations.errors import DamagedError
from ablations.files.layout import EVALUATIONS
from ablations.files.tables import column_names, read_arrow, write_arrow, write_table
from dapo_lit.evaluation.sampled import EvaluatedSample, Evaluation, SampleName

REMEDY = "; restore it, or remove the folder to sample again"
MOST_VALUES = 2_400_000
"""Of samples.parquet: those of 200,000 samples."""
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
        ("scored_by", pa.string()),
    ]
)


def read_samples(folder: Path) -> dict[SampleName, EvaluatedSample]:
    """All samples in samples.parquet; none where there is no file yet.

    Raises DamagedError: it cannot be read, or a value is of another type; one line with the row and the column.
    """
    file, found = folder / "samples.parquet", dict[SampleName, EvaluatedSample]()
    rows: list[dict[str, Any]] = []
    if file.is_file():
        # Files of earlier versions do not say what code scored them.
        known = "scored_by" in column_names(file)
        rows = read_arrow(
            file, [name for name in SCHEMA.names if known or name != "scored_by"], MOST_VALUES
        ).to_pylist()
    for number, row in enumerate(rows, 1):
        sample = checked(row, EvaluatedSample, f"{file}, row {number}", remedy=REMEDY)
        if sample.name in found:
            raise DamagedError(
                f"{file}, row {number}: a second sample {sample.sample_index} of {row['problem_id']}{REMEDY}"
            )
        found[sample.name] = sample
    return found


def write_samples(folder: Path, samples: Iterable[EvaluatedSample]) -> None:
    """Replaces samples.parquet, sorted by problem and sample."""
    rows = [asdict(sample) for sample in sorted(samples, key=lambda s: s.name)]
    write_arrow(folder / "samples.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))


def write_evaluation(folder: Path, benchmark: str, step: int, evaluation: Evaluation) -> None:
    """eval/<benchmark>/step_000050.parquet: the samples of an evaluation during training."""
    rows = [{key: v for key, v in asdict(s).items() if key != "scored_by"} for s in evaluation.samples]
    (tables := folder / EVALUATIONS / benchmark).mkdir(exist_ok=True)
    write_table(tables / f"step_{step:06d}.parquet", pd.DataFrame(rows))
