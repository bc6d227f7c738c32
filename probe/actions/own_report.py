"""Which file each session of a process writes the report of its end to. Used by `session.py`."""

from __future__ import annotations

import os
from pathlib import Path

_reports: dict[str, str] = {}
"""Run that has written a report at its end, by what it was asked to write."""


def own_report(path: str | Path, run: str) -> str | Path:
    """A file of one's own, where several sessions of a process were asked for the same one.

    Args:
        path: that was asked for; a folder serves all.
        run: of the session.
    """
    taken = _reports.setdefault(str(path), run)
    is_folder = str(path).endswith(("/", os.sep)) or Path(path).is_dir()
    if taken == run or is_folder:
        return path
    file = Path(path)
    return file.with_name(f"{file.stem}-{run}{file.suffix}")
