"""What is said of growing memory: findings with their messages, and the stack down to the line of a leak.

Called by what watches memory: on the training thread, for a sample of the machine on the recorder's.
Judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

import msgspec

from ..delivery.host_memory import MemorySample, read_swap
from ..detectors.base import Finding
from ..detectors.memory import Growth
from ..detectors.resources import ResourceReading
from ..threads.notebook_cells import shown_file
from ..threads.stacks import format_loop_stack, raw_stack
from ..wire import StackFrame
from ..wire.findings import size_text
from .memory_limit import MemoryUse

if TYPE_CHECKING:
    from .growth_lines import GrowthLine
    from .heap_looks import Look
    from .leaks import Leak

_STACK_FRAMES: Final = 64
_SWAP_FROM: Final = 0.9
_NOT_FOUND: Final = "No container of the script was found that grows."
_NOT_IN_HEAP: Final = (
    "What grows is not what malloc hands out: look at pinned and shared memory, and at other allocators."
)


class MemoryIncident(msgspec.Struct, frozen=True):
    """What the watch has found, with the stack of an event."""

    finding: Finding
    stack: Sequence[StackFrame]
    """Outermost frame first; the innermost is the line that feeds the leak, where it is known."""


def leak_finding(
    step: int, leaks: Sequence[Leak], growth: Growth | None, *, free_bytes: float | None
) -> Finding:
    """Return one finding for the worst of some leaks; the others are named in it."""
    worst = leaks[0]
    # Small objects do not lie where memory was read.
    growth = None if worst.is_plain else growth
    pace = worst.bytes_per_step if worst.is_plain else None if growth is None else growth.bytes_per_step
    holder = "They have" if worst.is_group else "It has"
    lines = [
        f"Memory leak: {worst.sentence()}",
        *([] if pace is None else [_pace(pace, free_bytes)]),
        *([f"{holder} {worst.length:,} items at step {step}."] if worst.content else []),
        *(f"And {leak.sentence()}" for leak in leaks[1:4]),
        worst.remedy(),
    ]
    return Finding(
        kind="memory_leak",
        severity="warning",
        subject=worst.subject,
        message="\n".join(lines),
        value=pace,
        threshold=None,
        baseline=_baseline(growth, worst),
        neighbours=() if growth is None else growth.readings,
        affected=tuple(leak.subject for leak in leaks),
    )


def unexplained_finding(
    growth: Growth, *, free_bytes: float | None, has_looked: bool, looks: tuple[Look, Look] | None
) -> Finding:
    """Return the finding for growth of the process that no container of the script explains.

    Args:
        growth: of the process's own memory.
        free_bytes: memory that is left; None: not known.
        has_looked: whether two looks at the heap have been compared.
        looks: the first look and the newest one.
    """
    return Finding(
        kind="memory_leak",
        severity="warning",
        subject="process",
        message="\n".join(
            [
                f"Memory of the process keeps growing: {size_text(growth.grown)} since step "
                f"{growth.readings[-1][0] - growth.total_steps}",
                _pace(growth.bytes_per_step, free_bytes),
                f"{_NOT_FOUND if has_looked else _NOT_IN_HEAP}{'' if looks is None else _more(*looks)}",
            ]
        ),
        value=growth.bytes_per_step,
        threshold=None,
        baseline=_baseline(growth, None),
        neighbours=growth.readings,
    )


def _more(before: Look, now: Look) -> str:
    from .heap_looks import more_tensors, shape_text

    more = more_tensors(before, now)
    return f" More tensors than at step {before.step}: {shape_text(more)}." if more else ""


def _pace(pace: float, free_bytes: float | None) -> str:
    """How fast memory grows, in bytes a step, and when it is used up."""
    text = f"Memory grows by {size_text(pace)} per step ({size_text(1000 * pace)} per 1,000 steps)"
    if free_bytes is not None and pace > 0:
        steps = free_bytes / pace
        if steps < 1e7:
            steps = float(f"{steps:.2g}")
            text += f": free memory ({size_text(free_bytes)}) will run out in about {steps:,.0f} steps"
    return f"{text}."


def _baseline(growth: Growth | None, leak: Leak | None) -> dict[str, float] | None:
    numbers: dict[str, float] = {}
    if growth is not None:
        numbers |= {"baseline_bytes": growth.baseline, "bytes": growth.value, "steps": float(growth.steps)}
    if leak is not None:
        numbers |= {"items": float(leak.length), "items_per_step": leak.per_step}
    return numbers or None


def loop_stack(frame: FrameType | None) -> list[StackFrame]:
    """Return the training loop's stack, outermost frame first."""
    return format_loop_stack(raw_stack(frame, limit=_STACK_FRAMES))


def stack_to(line: GrowthLine | None, frame: FrameType | None) -> list[StackFrame]:
    """Return the training loop's stack down to the line: it stands in for the frame of its function."""
    stack = loop_stack(frame)
    if line is None:
        return stack
    for index in range(len(stack) - 1, -1, -1):
        if (stack[index].file, stack[index].function) == (shown_file(line.file), line.function):
            return [*stack[:index], line.as_frame()]
    return [*stack, line.as_frame()]


def resource_reading(
    step: int, sample: MemorySample, use: MemoryUse, device: MemoryUse | None
) -> ResourceReading:
    """Return what is used of the machine, the process and a device that has been read."""
    swap = read_swap() if use.total and use.used / use.total > _SWAP_FROM else None
    return ResourceReading(
        step=step,
        system_used_bytes=use.used,
        system_total_bytes=use.total,
        process_bytes=float(sample.rss_bytes),
        swap_used_bytes=swap,
        device_used_bytes=None if device is None else device.used,
        device_total_bytes=None if device is None else device.total,
        cpu_fraction=None if sample.utilisation is None else sample.utilisation.system_cpu,
        gpu_fraction=None if sample.utilisation is None else sample.utilisation.gpu,
    )
