"""Where the process began: relative paths in the environment are relative to that, wherever it goes."""

from __future__ import annotations

import os
from typing import Final


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a Path is made of it where one is needed
    except OSError:  # it was removed
        return os.sep


FOLDER: Final = _working_folder()
"""The working folder when the probe was imported."""
