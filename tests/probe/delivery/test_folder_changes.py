"""A folder that is asked about again and again is listed when something has come, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probe.delivery.journal import run_folders
from probe.delivery.journal.folder_changes import FolderChanges
from probe.delivery.journal.run_folders import WriterList


def make_old(folder: Path) -> None:
    """As if nothing had come to it for a minute."""
    then_s = folder.stat().st_mtime - 60
    os.utime(folder, (then_s, then_s))


def test_folder_changes_are_told_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    changes = FolderChanges(folder)
    assert not changes.look()
    folder.mkdir()
    make_old(folder)
    assert changes.look()
    assert not changes.look()
    (folder / "file").touch()
    assert changes.look()


def test_folder_that_has_just_changed_is_looked_at_again(tmp_path: Path) -> None:
    os.utime(tmp_path)
    changes = FolderChanges(tmp_path)
    # What comes within the same tick of the file system's clock leaves the same time behind.
    assert changes.look()
    assert changes.look()


def test_writers_are_listed_when_one_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    list_writers = run_folders.list_writers

    def count(folder: Path) -> list[Path]:
        listed.append(folder)
        return list_writers(folder)

    monkeypatch.setattr(run_folders, "list_writers", count)
    (tmp_path / "0-1").mkdir()
    make_old(tmp_path)
    writers = WriterList(tmp_path)
    assert [writers.look() for _ in range(100)] == [[tmp_path / "0-1"]] * 100
    assert len(listed) == 1
    (tmp_path / "1-1").mkdir()
    assert writers.look() == [tmp_path / "0-1", tmp_path / "1-1"]
