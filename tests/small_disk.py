"""A file system of a few hundred KiB, for tests of a disk that is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def disk_of(place: Path, *, kib: int) -> Iterator[Path]:
    """Mount one at `place`, which is made; skips the test where only root can do that."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=0700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], timeout=30, check=True)


def fill(disk: Path) -> Path:
    """Take all the room that a disk has left; return the file that took it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return ballast
