"""What is replaced is on disk before it has its name, and an error or a kill leaves what was there."""

import os
from pathlib import Path

import pytest

from ablations.files.atomic import replacing, write_text


def test_content_is_on_disk_before_the_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, (tmp_path / "new").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with replacing(tmp_path / "new") as draft:
        draft.mkdir()
        (draft / "part").write_text("content")
    assert synced == [("part", False), ("new.part", False), (tmp_path.name, True)]


def test_an_error_leaves_the_old_content_and_no_draft(tmp_path):
    final = tmp_path / "final"

    def write(content: str, fails: bool = False) -> None:
        with replacing(final) as draft:
            draft.write_text(content)
            if fails:
                raise KeyError

    write("old")
    with pytest.raises(KeyError):
        write("half", fails=True)
    assert final.read_text() == "old"
    write("new")
    assert final.read_text() == "new"
    assert list(tmp_path.iterdir()) == [final]


def test_the_draft_of_a_killed_process_is_written_anew(tmp_path):
    (tmp_path / "file.part").write_text("left by a kill, and longer")
    write_text(tmp_path / "file", "whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "whole")]
