"""What a self-check finds, and the checks that the probe's side and the dashboard's have in common.

Standard library only, so that it works in an installation from which everything else is missing. Called by
`self_check` and by `dashboard doctor`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

State: TypeAlias = Literal["ok", "limited", "missing"]
"""`limited` works with less; `missing` stops recording, or the dashboard from serving."""

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a self-check."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What follows from it and what to do; "" where nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library that nanscope uses, by the name of its distribution."""

    name: str
    minimum: str = ""
    """Oldest version that pyproject.toml allows; "" where it leaves that to another library."""
    module: str = ""
    """Top-level module, where it is not called like the distribution."""
    below: int | None = None
    """First major version that nanscope does not know yet."""

    @property
    def version(self) -> str | None:
        """Installed version, from its metadata; None without it or without the module. Imports nothing."""
        try:
            version = importlib.metadata.version(self.name)
            found = importlib.util.find_spec(self.module or self.name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return None
        return version if found is not None else None


def check_library(library: Library, *, is_needed: bool = True) -> Finding:
    """Say whether a library is there and of a version that nanscope knows."""
    version = library.version
    wanted = f"{library.name}>={library.minimum}" if library.minimum else library.name
    install = f'pip install "{wanted}"'
    if version is None:
        if is_needed:
            return Finding(
                name=library.name, state="missing", found="not installed", advice=f"Install it: {install}"
            )
        return Finding(
            name=library.name, state="ok", found="not installed; used only with scripts that have it"
        )
    if _numbers(version) < _numbers(library.minimum):
        return Finding(
            name=library.name,
            state="missing" if is_needed else "limited",
            found=f"{version}, older than {library.minimum}",
            advice=f"Install a newer one: {install}",
        )
    if library.below is not None and _numbers(version)[0] >= library.below:
        return Finding(
            name=library.name,
            state="limited",
            found=f"{version}, newer than nanscope knows",
            advice=f'If something fails: pip install "{library.name}<{library.below}"',
        )
    return Finding(name=library.name, state="ok", found=version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])) or (0,)


def existing_part(folder: Path) -> Path:
    """Return the folder itself or, while it does not exist, the nearest one above it that does.

    Raises:
        OSError: a folder on the way cannot be looked into.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place


def write_problem(folder: Path) -> str | None:
    """Return why nothing can be written in a folder, or why it cannot be made; None if it can.

    Tries it with a file that is gone at once: access bits say nothing about a read-only file system.
    """
    try:
        place = existing_part(folder)
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return f"{error.strerror or error}"


def free_bytes(folder: Path) -> int:
    """Return the bytes free to this user where `folder` is or would be.

    Raises:
        OSError: the file system does not say.
    """
    return shutil.disk_usage(existing_part(folder)).free


def size_text(size: float) -> str:
    """Bytes for reading, such as ``1.5 GiB``: in KiB to TiB, with one decimal."""
    power = min(max(int(math.log2(max(size, 1)) // 10), 1), len(_UNITS))
    return f"{size / 1024**power:,.1f} {_UNITS[power - 1]}"
