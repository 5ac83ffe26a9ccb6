"""Writes Parquet files so that a kill leaves no part of one."""

from pathlib import Path

import pandas as pd

from dapo_lit.runs.named_errors import naming


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    with naming(path):
        frame.to_parquet(draft, index=False, compression="zstd")
        draft.replace(path)
