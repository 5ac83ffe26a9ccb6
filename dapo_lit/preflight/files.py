"""Small data files are read before torch loads: a column that is missing is said within a second."""

from pathlib import Path

from dapo_lit.config.sections import Reward, Task

READ_TWICE = 2_000_000
"""Bytes. Larger files are read once, after torch has loaded; reading these takes a tenth of a second."""


def check_files(task: Task, reward: Reward) -> None:
    """Raises DataError for a small data file with rows that cannot be used, as the run itself would later."""
    if task.name != "file":
        return
    from dapo_lit.data.sources import load_heldout, load_with_selection

    columns = {str(field): name for field, name in (task.columns or {}).items()}
    optional = reward.function is not None
    if _is_small(task.path):
        load_with_selection(str(task.path), "train", columns=columns, answers_optional=optional)
    if _is_small(task.eval_path):
        load_heldout(str(task.eval_path), columns, "task.eval_path", answers_optional=optional)


def _is_small(path: str | None) -> bool:
    file = Path(path) if path else None
    return file is not None and file.is_file() and file.stat().st_size <= READ_TWICE
