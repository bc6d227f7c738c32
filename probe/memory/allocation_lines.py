"""Sums the blocks of torch's CUDA allocator by the line of the script that asked for them. Pure.

Reads what `torch.cuda.memory._snapshot` returns: blocks have their frames, the innermost first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ..threads.user_lines import user_line
from ..wire import StackFrame

_NO_FRAMES: Final = StackFrame(file="", line=0, function="")
_INNERMOST: Final = 64


class LineSums(msgspec.Struct, kw_only=True):
    """What one line has asked for. `file` is "" for what has no stack: it was there before, or is C++'s."""

    file: str
    line: int
    function: str
    live_bytes: int = 0
    """In use when the history was read."""
    live_blocks: int = 0
    allocated_bytes: int = 0
    """Asked for in all, as far back as the history goes."""
    allocations: int = 0

    @property
    def place(self) -> str:
        """``train.py:26``."""
        return f"{Path(self.file).name}:{self.line}" if self.file else "before, or without a line"


def sums_by_line(history: Mapping[str, Any]) -> list[LineSums]:
    """Return a sum for each line of the script, the one that holds most first."""
    sums: dict[tuple[str, int], LineSums] = {}
    for block in _blocks(history.get("segments", ())):
        if block.get("state") == "active_allocated":
            one = _of(sums, block.get("frames") or ())
            one.live_bytes += int(block["size"])
            one.live_blocks += 1
    for trace in history.get("device_traces", ()):
        for entry in trace:
            if entry.get("action") == "alloc":
                one = _of(sums, entry.get("frames") or ())
                one.allocated_bytes += int(entry["size"])
                one.allocations += 1
    return sorted(sums.values(), key=lambda one: (-one.live_bytes, -one.allocated_bytes))


def _blocks(segments: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for segment in segments:
        yield from segment.get("blocks", ())


def _of(sums: dict[tuple[str, int], LineSums], frames: Sequence[Mapping[str, Any]]) -> LineSums:
    line = _script_line(frames)
    key = line.file, line.line
    if key not in sums:
        sums[key] = LineSums(file=line.file, line=line.line, function=line.function)
    return sums[key]


def _script_line(frames: Sequence[Mapping[str, Any]]) -> StackFrame:
    """The innermost line that is neither torch's nor an installed package's; else the innermost of all."""
    stack = [
        StackFrame(file=str(one["filename"]), line=max(int(one["line"]), 0), function=str(one["name"]))
        for one in frames[:_INNERMOST]
    ]
    return user_line(stack[::-1]) or _NO_FRAMES
