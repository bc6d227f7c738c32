"""Where the process began: relative paths in the environment are relative to that, wherever it goes."""

from __future__ import annotations

import os
import sys
from typing import Final


def _working_folder() -> str:
    # Python keeps it as well, from an earlier time perhaps, and gives it to processes that it spawns.
    process = sys.modules.get("multiprocessing.process")
    if folder := getattr(process, "ORIGINAL_DIR", None):
        return str(folder)
    try:
        return os.getcwd()  # noqa: PTH109 - a Path is made of it where one is needed
    except OSError:  # it was removed
        return os.sep


FOLDER: Final = _working_folder()
"""The working folder when the probe was imported; in a process that multiprocessing started, its parent's."""
