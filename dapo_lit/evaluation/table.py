"""The samples of an evaluation as Parquet, one row a sample."""

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from dapo_lit.evaluation.sampled import Evaluation
from dapo_lit.runs.parquet import write_parquet


def write_evaluation(folder: Path, benchmark: str, step: int, evaluation: Evaluation) -> None:
    """eval/<benchmark>/step_000050.parquet: every sample, with stable problem ids."""
    rows = [asdict(sample) for sample in evaluation.samples]
    write_parquet(folder / "eval" / benchmark / f"step_{step:06d}.parquet", pd.DataFrame(rows))
