"""A disk that is full while a study is packed or reported: what was there is there, and the reason is one line."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synthetic_runs import write_study

from ablations.commands.report import main as report
from ablations.commands.status import main as status


@contextmanager
def room(size: int) -> Iterator[None]:
    """Within it, no file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("size", [100, 1_000, 5_000])
def test_packed_cells_and_a_report_are_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int):
    study = write_study(tmp_path, "pair", seeds=range(2), steps=12, every=3)
    for command, arguments, out in (
        (status, [str(study), "--pack", str(tmp_path / "packed")], tmp_path / "packed"),
        (report, [str(study)], study / "report"),
    ):
        command(arguments)
        before = content(out)
        capsys.readouterr()
        with room(size), pytest.raises(SystemExit) as ended:
            command(arguments)
        assert ended.value.code == 2
        assert content(out) == before
        said = capsys.readouterr().err
        assert "error: " in said
        assert "Traceback" not in said
