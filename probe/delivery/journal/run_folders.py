"""Which runs a spool has, which writers a run has, and what describes a run. Reads no records.

Used by the helper, by the dashboard and by the offline commands; a reader never changes a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

import msgspec

from ...errors import JournalError
from ...guard import let_pass, suppressed
from ...settings.places import is_folder_name
from ...wire import RunStart
from ...wire.ordinary_files import read_ordinary
from .folder_changes import FolderChanges
from .segment_files import MAX_RUN_JSON_BYTES


def list_runs(spool: Path, known: Collection[str] = ()) -> list[Path]:
    """Return the run folders of a spool, by name; an empty folder is an empty spool.

    Args:
        spool: root folder of all runs.
        known: names of runs that are left out, and not looked at.

    Raises:
        JournalError: the path is not a folder, or holds other things than runs.
    """
    try:
        names = sorted(os.listdir(spool))  # noqa: PTH208 - a Path for each of ten thousand is dear
    except FileNotFoundError:
        raise JournalError(f"{spool} does not exist; give the folder that holds the runs") from None
    except OSError as error:
        let_pass(error)
        raise JournalError(f"{spool} is not a spool: {error.strerror or error}") from error
    others = [name for name in names if name not in known]
    runs = [spool / name for name in others if is_folder_name(name) and _is_run(spool / name)]
    if others == names and names and not runs and not any(name.startswith(".") for name in names):
        if unreadable_runs(spool):
            return []
        raise JournalError(f"{spool} is not a spool: it holds other things, but no run")
    return runs


def list_writers(run_folder: Path) -> list[Path]:
    """Return the writers' folders of a run (``<rank>-<incarnation>``, ``host-<name>``), by name."""
    with suppressed(OSError):
        return sorted(
            child
            for child in run_folder.iterdir()
            if "-" in child.name and is_folder_name(child.name) and child.is_dir()
        )
    return []


class WriterList:
    """The writers' folders of a run, for who asks again and again: one `stat` as long as none has come.

    Args:
        run_folder: `SPOOL/<run>`.
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._changes = FolderChanges(run_folder)
        self._writers: list[Path] = []

    def look(self) -> list[Path]:
        """Return the folders that there are now, by name."""
        if self._changes.look():
            self._writers = list_writers(self._run_folder)
        return self._writers


def read_run_json(run_folder: Path) -> RunStart | None:
    """Return what the run's first writer noted; None when there is nothing readable."""
    try:
        return _run_json(run_folder / "run.json")
    except JournalError:
        return None


def run_problem(run_folder: Path) -> str | None:
    """Say why a run's folder, or what describes it, cannot be read; None where all is well.

    Without a `run.json` all is well: a run that has only begun has none.
    """
    try:
        os.listdir(run_folder)  # noqa: PTH208 - only whether it can be listed
        if not os.path.lexists(run_folder / "run.json"):
            return None
        _run_json(run_folder / "run.json")
    except OSError as error:
        let_pass(error)
        return f"the folder cannot be read: {error.strerror or error}"
    except JournalError as error:
        return str(error)
    return None


def unreadable_runs(spool: Path, known: Collection[str] = ()) -> dict[str, str]:
    """Return name -> reason of what looks like the folder of a run and cannot be read; `list_runs` has none
    of them.

    Args:
        spool: root folder of all runs.
        known: names of runs that are left out, and not looked at.
    """
    found: dict[str, str] = {}
    with suppressed(OSError):
        for name in sorted(os.listdir(spool)):  # noqa: PTH208 - as above
            if name in known or name.startswith(".") or not is_folder_name(name):
                continue
            child = spool / name
            try:
                if stat.S_ISDIR(child.stat().st_mode):
                    os.listdir(child)  # noqa: PTH208 - only whether it can be listed
                    (child / "run.json").is_file()
            except OSError as error:
                let_pass(error)
                found[name] = f"it cannot be read: {error.strerror or error}"
    return found


def _run_json(path: Path) -> RunStart:
    """Read a `run.json`.

    Raises:
        JournalError: there is none, or it is not one.
    """
    try:
        return msgspec.json.decode(read_ordinary(path, MAX_RUN_JSON_BYTES), type=RunStart)
    except OSError as error:
        let_pass(error)
        raise JournalError(f"its run.json cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(f"its run.json does not decode: {str(error)[:200]}") from error


def _is_run(folder: Path) -> bool:
    """Whether it is the folder of a run; one that this user may not look into is none."""
    with suppressed(OSError):
        return folder.is_dir() and ((folder / "run.json").is_file() or bool(list_writers(folder)))
    return False
