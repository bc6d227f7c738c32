"""What a bundle's folder is told by, and which format it has. Loads no torch: the dashboard opens bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from ..errors import BundleError
from .ordinary_files import NotOrdinaryError, read_ordinary

VERSION: Final = 1
DESCRIPTION: Final = "bundle.json"
MAX_DESCRIPTION_BYTES: Final = 256 * 1024**2
SPOOL: Final = "spool"
"""A journal of the step and those before it, within the folder."""


class _Format(msgspec.Struct, frozen=True):
    """The one field that every format has."""

    version: int


def check_format(data: bytes) -> None:
    """Check the format of a description, before anything else of it is read.

    Raises:
        ValueError: it is no description, or one that another nanscope reads.
    """
    try:
        version = msgspec.json.decode(data, type=_Format).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise ValueError(
            f"it is of version {version}, which {age} nanscope has written; this nanscope reads version "
            f"{VERSION}: take one of the run's version"
        )


def read_description(folder: Path) -> bytes:
    """Read `bundle.json`, without waiting for a pipe or following a link.

    Raises:
        BundleError: it is no file that a bundle may have.
        OSError: it cannot be read.
    """
    path = folder / DESCRIPTION
    try:
        return read_ordinary(path, MAX_DESCRIPTION_BYTES)
    except NotOrdinaryError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None


def check_folder(folder: Path) -> None:
    """Check a bundle's folder before it is shown.

    Raises:
        BundleError: its description cannot be read, or is of another format.
    """
    path = folder / DESCRIPTION
    try:
        check_format(read_description(folder))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BundleError(f"{path} is not a bundle's description: {error}") from error
