"""Watches memory through a run: finds growth that goes on, and looks for what grows only while it does.

Called by the step writer on the training thread at the end of every step. A reading takes some microseconds
and 0.05 % of the time at most; a look at all objects some 50 ms, a few times a run and only on suspicion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final, Literal

import psutil
import torch

from ..compat import torch_private
from ..delivery.recorder.recorder import MemorySample
from ..detectors.base import Finding
from ..detectors.memory import Growth, GrowthDetector, LeakJudge
from ..detectors.resources import ResourceDetector, ResourceReading
from ..threads.stacks import format_loop_stack, raw_stack
from ..wire import StackFrame
from ..wire.findings import size_text
from .growth_lines import GrowthLine
from .heap_looks import Grown, Look, look, more_tensors, shape_text
from .heap_meter import Pacer, cuda_reader, heap_reader, own_bytes
from .leaks import Leak, find_leaks
from .memory_limit import memory_use

_MIB: Final = 2**20
_FLOOR: Final = 64 * 1024.0
"""Less growth over a window is none: the detectors' own histories fill up in the first steps."""
_LOOK_STEPS: Final = (10, 40, 160)
"""Steps from the first look to each comparison with it; then memory must grow further before the next."""
_LOOK_NS: Final = 400_000_000
_NAMING_NS: Final = 150_000_000
"""CPU time that a look at all objects may take, and the walk that names what has grown."""
_FREE_LOOKS: Final = 6
_LOOK_SHARE: Final = 200
"""Looks after the first few wait this many times as long as the last one took: 0.5 % of the time."""
_QUIET_READINGS: Final = 8
"""Readings in a row without growth that end a series of looks."""
_REGROWTH_BYTES: Final = 4 * _MIB
"""What memory grows by before looks that have found nothing are repeated; twice as much every time."""
_HELD_BYTES: Final = 32 * _MIB
_HELD_FRACTION: Final = 0.05
"""A container without graphs is a leak when it holds so much, absolutely and of the process's memory."""
_MAX_REPORTS: Final = 5
_STACK_FRAMES: Final = 64
_SWAP_FROM: Final = 0.9
_NOT_FOUND: Final = "No container of the script was found that grows."
_NOT_IN_HEAP: Final = (
    "What grows is not what malloc hands out: look at pinned and shared memory, and at other allocators."
)


@dataclass(frozen=True, slots=True)
class MemoryIncident:
    """What the watch has found, with the stack of an event."""

    finding: Finding
    stack: Sequence[StackFrame]
    """Outermost frame first; the innermost is the line that feeds the leak, where it is known."""


class LeakWatch:
    """Follows one training loop's memory.

    Args:
        clock_ns: a clock that only goes forward.
        read_heap: reads the bytes in use on the host; None where nothing tells them.
        read_process: reads the process's own resident bytes; None of them: not known.
        pacer: when allocators are read.

    Attributes:
        looks: how many looks at all objects were taken: a step with one is no ordinary step.
    """

    def __init__(
        self,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        read_heap: Callable[[], float] | None = None,
        read_process: Callable[[], float | None] = own_bytes,
        pacer: Pacer | None = None,
    ) -> None:
        self.looks = 0
        self._clock_ns = clock_ns
        self._read_heap, self._read_cuda = read_heap, cuda_reader()
        self._read_process = read_process
        self._heap, self._cuda = GrowthDetector(floor=_FLOOR), GrowthDetector(floor=_FLOOR)
        self._process = GrowthDetector()
        self._judge, self._resources = LeakJudge(), ResourceDetector()
        self._pacer = pacer or Pacer()
        self._sample: MemorySample | None = None
        self._growth: Growth | None = None
        self._suspicion: Growth | None = None
        """What made the watch look."""
        self._value = 0.0
        self._quiet_readings = 0
        """In a row, without growth."""
        self._own_bytes: float | None = None
        self._free_bytes: float | None = None
        self._first: Look | None = None
        self._compared = 0
        self._not_before_ns = 0
        self._place: Literal["host", "device"] = "host"
        self._bars = {"host": 0.0, "device": 0.0}
        """Bytes from which on looks are taken."""
        self._regrowth_bytes = _REGROWTH_BYTES
        self._grown_before: set[int] = set()
        self._lengths: dict[int, int] = {}
        self._emptied: set[int] = set()
        self._reported: set[str] = set()

    @classmethod
    def of_this_process(cls) -> LeakWatch:
        """Return one that reads this process's heap, where the C library tells of it."""
        return cls(read_heap=heap_reader())

    def wants(self, sample: MemorySample | None) -> bool:
        """Whether `follow` has anything to do at this step."""
        return (
            self._first is not None or sample is not self._sample or self._clock_ns() >= self._pacer.next_ns
        )

    def follow(self, step: int, sample: MemorySample | None, frame: FrameType | None) -> list[MemoryIncident]:
        """A step has ended.

        Args:
            step: its number.
            sample: the newest reading of process and machine.
            frame: where the training thread is.

        Returns:
            What is wrong; nearly always empty.
        """
        if self._first is not None and step < self._first.step:
            self._first = None
        if self._first is not None:
            self._first.mark()
            if self._is_time_to_compare(step):
                return self.look(step, frame)
        found: list[MemoryIncident] = []
        if sample is not None and sample is not self._sample:
            found = self.note(step, sample, frame)
        if self._clock_ns() >= self._pacer.next_ns:
            self._read(step)
            if self.wants_look():
                self.look(step, frame)
        return found

    def note(self, step: int, sample: MemorySample, frame: FrameType | None) -> list[MemoryIncident]:
        """Take a new reading of process and machine, about once a second."""
        self._sample = sample
        now = self._clock_ns() / 1e9
        use = memory_use(sample.system_used_bytes, sample.system_total_bytes)
        self._free_bytes = use.total - use.used
        self._own_bytes = self._read_process() or float(sample.rss_bytes)
        growth = self._process.add(step, now, self._own_bytes)
        findings = self._resources.observe(_resource_reading(step, sample, use.used, use.total))
        if self._judge.is_leak(growth, step=step, free_bytes=self._free_bytes) and growth is not None:
            leak = self._unattributed(step, growth)
            if leak is not None:
                findings.append(leak)
        if self._read_heap is None and growth is not None:
            self._note_growth("host", growth)
            self._quiet_readings = 0
        stack = _loop_stack(frame) if findings else []
        return [MemoryIncident(finding, stack) for finding in findings]

    def _read(self, step: int) -> None:
        """Read the allocators, and judge what they say."""
        started_ns, cpu_ns = self._clock_ns(), time.thread_time_ns()
        if self._read_heap is not None:
            value = self._read_heap()
            is_open = self._first is not None or value >= self._bars["host"]
            self._note_growth("host", self._heap.add(step, started_ns / 1e9, value, judge=is_open))
        if self._read_cuda is None:
            self._read_cuda = cuda_reader()
        elif (on_device := self._cuda.add(step, started_ns / 1e9, self._read_cuda())) is not None:
            self._note_growth("device", on_device)
        self._quiet_readings = self._quiet_readings + 1 if self._growth is None else 0
        self._pacer.note(started_ns, time.thread_time_ns() - cpu_ns)

    def _note_growth(self, place: Literal["host", "device"], growth: Growth | None) -> None:
        self._growth = growth
        if growth is not None:
            self._place, self._value = place, growth.value

    def wants_look(self) -> bool:
        """Whether memory grows, and what grows is not being looked for already."""
        if self._first is not None or self._growth is None or len(self._reported) >= _MAX_REPORTS:
            return False
        if not self._growth.keeps_pace:
            # The probe's own histories fill in the first some thousand steps, ever more slowly.
            return False
        return self._growth.value >= self._bars[self._place] and self._clock_ns() >= self._not_before_ns

    def _is_time_to_compare(self, step: int) -> bool:
        assert self._first is not None
        due = self._first.step + _LOOK_STEPS[self._compared]
        return step >= due and self._clock_ns() >= self._not_before_ns

    def look(self, step: int, frame: FrameType | None) -> list[MemoryIncident]:
        """Look at all objects; from the second look on, say what has grown."""
        cpu_ns = time.thread_time_ns()
        self.looks += 1
        now, grown = look(step, limit_ns=_LOOK_NS, before=self._first)
        if self._first is None:
            self._first, self._compared, self._suspicion = now, 0, self._growth
            return []
        leaks = find_leaks(self._first, now, grown, frame, limit_ns=_NAMING_NS)
        found = self._report(step, [leak for leak in leaks if self._is_certain(leak)], frame)
        self._remember(now, grown)
        self._compared += 1
        suspects = [leak.held_bytes for leak in leaks if _MIB <= leak.held_bytes < self._least_held()]
        if self.looks >= _FREE_LOOKS:
            self._not_before_ns = self._clock_ns() + _LOOK_SHARE * (time.thread_time_ns() - cpu_ns)
        if found or self._compared >= len(_LOOK_STEPS) or suspects or self._is_quiet():
            self._raise_bar(suspects)
            self._first = None
        if found:
            self._bars[self._place] = 2 * self._value
        return found

    def _is_quiet(self) -> bool:
        """Whether memory has stopped growing; what grows in few steps takes some to show."""
        return self._compared > 1 and self._quiet_readings >= _QUIET_READINGS

    def _raise_bar(self, suspects: Sequence[float]) -> None:
        """Look again when a container that grows may hold enough to be a leak, else after some growth."""
        if suspects:
            self._bars[self._place] = self._value + self._least_held() - max(suspects)
        else:
            self._bars[self._place] = self._value + self._regrowth_bytes
            self._regrowth_bytes *= 2

    def _least_held(self) -> float:
        return max(_HELD_BYTES, _HELD_FRACTION * (self._own_bytes or 0.0))

    def _is_certain(self, leak: Leak) -> bool:
        """Whether it is a leak whatever comes: it keeps graphs, or holds much and grows every time."""
        if leak.subject in self._reported:
            return False
        if leak.has_graph:
            return True
        if leak.is_dataset or leak.identity in self._emptied or leak.identity not in self._grown_before:
            return False
        return leak.held_bytes >= self._least_held()

    def _remember(self, now: Look, grown: Sequence[Grown]) -> None:
        """Which containers have grown, and which of those that had have been emptied since."""
        for identity, length in self._lengths.items():
            if now.sizes.get(identity, 0) < length:
                self._emptied.add(identity)
        self._grown_before |= {id(item.container) for item in grown}
        self._lengths |= {id(item.container): item.now for item in grown}

    def _report(self, step: int, leaks: Sequence[Leak], frame: FrameType | None) -> list[MemoryIncident]:
        """One event for the worst of them; the others are named in it."""
        if not leaks or len(self._reported) >= _MAX_REPORTS:
            return []
        self._reported |= {leak.subject for leak in leaks}
        worst, growth = leaks[0], self._growth or self._suspicion
        lines = [
            f"Memory leak: {worst.sentence()}",
            *([] if growth is None else [_pace(growth, self._free_bytes)]),
            *([f"It has {worst.length:,} items at step {step}."] if worst.content else []),
            *(f"And {leak.sentence()}" for leak in leaks[1:4]),
            worst.remedy(),
        ]
        finding = Finding(
            kind="memory_leak",
            severity="warning",
            subject=worst.subject,
            message="\n".join(lines),
            value=None if growth is None else growth.bytes_per_step,
            threshold=None,
            baseline=_baseline(growth, worst),
            neighbours=() if growth is None else growth.readings,
            affected=tuple(leak.subject for leak in leaks),
        )
        return [MemoryIncident(finding, _stack_to(worst.line, frame))]

    def _unattributed(self, step: int, growth: Growth) -> Finding | None:
        """Growth of the process that no container of the script explains; said once."""
        if self._reported:
            return None
        self._reported.add("process")
        more = "" if self._first is None else self._more_tensors(step)
        return Finding(
            kind="memory_leak",
            severity="warning",
            subject="process",
            message="\n".join(
                [
                    f"Memory of the process grows without end: {size_text(growth.grown)} since step "
                    f"{growth.readings[-1][0] - growth.total_steps}",
                    _pace(growth, self._free_bytes),
                    f"{_NOT_FOUND if self.looks > 1 else _NOT_IN_HEAP}{more}",
                ]
            ),
            value=growth.bytes_per_step,
            threshold=None,
            baseline=_baseline(growth, None),
            neighbours=growth.readings,
        )

    def _more_tensors(self, step: int) -> str:
        assert self._first is not None
        now, _ = look(step, limit_ns=_LOOK_NS)
        self.looks += 1
        more = more_tensors(self._first, now)
        return f" More tensors than at step {self._first.step}: {shape_text(more)}." if more else ""


def _pace(growth: Growth, free_bytes: float | None) -> str:
    """How fast memory grows, and when it is used up."""
    pace = growth.bytes_per_step
    text = f"Memory grows by {size_text(pace)} a step, {size_text(1000 * pace)} in 1,000 steps"
    if free_bytes is not None and pace > 0:
        steps = free_bytes / pace
        if steps < 1e7:
            text += f": what is free ({size_text(free_bytes)}) lasts for about {steps:,.0f} steps"
    return f"{text}."


def _baseline(growth: Growth | None, leak: Leak | None) -> dict[str, float] | None:
    numbers: dict[str, float] = {}
    if growth is not None:
        numbers |= {"baseline_bytes": growth.baseline, "bytes": growth.value, "steps": float(growth.steps)}
    if leak is not None:
        numbers |= {"items": float(leak.length), "items_per_step": leak.per_step}
    return numbers or None


def _loop_stack(frame: FrameType | None) -> list[StackFrame]:
    return format_loop_stack(raw_stack(frame, limit=_STACK_FRAMES))


def _stack_to(line: GrowthLine | None, frame: FrameType | None) -> list[StackFrame]:
    """The training loop's stack down to the line: it stands in for the frame of its function."""
    stack = _loop_stack(frame)
    if line is None:
        return stack
    for index in range(len(stack) - 1, -1, -1):
        if (stack[index].file, stack[index].function) == (line.file, line.function):
            return [*stack[:index], line.as_frame()]
    return [*stack, line.as_frame()]


def _resource_reading(step: int, sample: MemorySample, used: float, total: float) -> ResourceReading:
    device_used = device_total = swap = None
    if torch_private.cuda_is_initialised():
        free, everything = torch.cuda.mem_get_info()
        device_used, device_total = float(everything - free), float(everything)
    if total and used / total > _SWAP_FROM:
        swap = float(psutil.swap_memory().used)
    return ResourceReading(
        step=step,
        system_used_bytes=used,
        system_total_bytes=total,
        process_bytes=float(sample.rss_bytes),
        swap_used_bytes=swap,
        device_used_bytes=device_used,
        device_total_bytes=device_total,
    )
