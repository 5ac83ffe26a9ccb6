"""Parquet files that are either whole or not there."""

from pathlib import Path

import pandas as pd


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    frame.to_parquet(beside, index=False, compression="zstd")
    beside.replace(path)
