"""What the kernel says of processes that it killed because memory ran out: counts, and its own record.

Used by the helper's census when a trainer is gone. Files only.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

_RECORD: Final = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+) [^\n]*")
_COUNTER: Final = "oom_kill"
_LOG: Final = Path("/dev/kmsg")
_MOST_RECORDS: Final = 100_000
_CGROUPS: Final = Path("/sys/fs/cgroup")


class Death(NamedTuple):
    """What is known of a trainer's end besides how it ended."""

    memory: str = ""
    """A sentence on the memory that it had; or empty."""
    oom_record: str = ""
    """A sentence with the kernel's own record of it; or empty."""
    is_memory: bool = False
    """Whether the kernel has ended some process because memory ran out since the last look."""


def memory_events_of(pid: int) -> tuple[Path, ...]:
    """Return the files in which the kernel counts what it ends: the machine's, and the process's group's."""
    files = [Path("/proc/vmstat"), _CGROUPS / "memory.events"]
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                files.append(_CGROUPS / path.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                files.append(_CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
    return tuple(dict.fromkeys(files))


def oom_kills(files: tuple[Path, ...]) -> int:
    """How often the kernel has ended a process because memory ran out, by these files."""
    total = 0
    for path in files:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                if line.split()[:1] == [_COUNTER]:
                    total += int(line.split()[1])
    return total


def kernel_log(path: Path = _LOG) -> str:
    """Return the kernel's messages; empty where they may not be read, as for most users."""
    messages = []
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    data = os.read(descriptor, 8192)
                except BlockingIOError:
                    break
                except BrokenPipeError:
                    continue  # older messages were overwritten meanwhile
                if not data:
                    break
                messages.append(data.decode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    return "".join(messages)


def oom_record(pid: int, log: str) -> str:
    """Return the kernel's record of ending a process because memory ran out, as a sentence; or empty."""
    found = [match for match in _RECORD.finditer(log) if int(match[1]) == pid]
    return f"The kernel killed it because memory ran out: {found[-1][0].strip()[:600]}" if found else ""
