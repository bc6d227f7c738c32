"""How much memory this process may use: the machine's, or what its container (control group) is allowed.

Reads small files under `/sys/fs/cgroup`; used about once a second, and when memory has run out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ..guard import is_from_signal

_FOLDER: Final = Path("/sys/fs/cgroup")
_VERSION_2: Final = ("memory.max", "memory.current", "memory.stat", "inactive_file")
_VERSION_1: Final = (
    "memory/memory.limit_in_bytes",
    "memory/memory.usage_in_bytes",
    "memory/memory.stat",
    "total_inactive_file",
)


class MemoryUse(NamedTuple):
    """Bytes."""

    used: float
    total: float


def memory_use(system_used: float, system_total: float, *, folder: Path = _FOLDER) -> MemoryUse:
    """Return what is used of what may be used: of the machine, or of the container where that is less.

    Args:
        system_used: bytes of the machine that are not available.
        system_total: bytes of the machine.
        folder: where control groups are mounted; a container sees its own at the root.
    """
    for limit_file, used_file, details_file, cache in (_VERSION_2, _VERSION_1):
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        if limit is not None and used is not None and 0 < limit < system_total:
            # Pages of files that can be dropped count as used there.
            return MemoryUse(max(used - _detail(folder / details_file, cache), 0.0), limit)
    return MemoryUse(float(system_used), float(system_total))


def _number(file: Path) -> float | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        if is_from_signal(error):
            raise
        return None
    return float(text) if text.isdigit() else None


def _detail(file: Path, name: str) -> float:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        if is_from_signal(error):
            raise
        return 0.0
    return next(
        (float(value) for key, _, value in (line.partition(" ") for line in lines) if key == name), 0.0
    )
