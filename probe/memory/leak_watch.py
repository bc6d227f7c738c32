"""Watches memory through a run: finds growth that goes on, and looks for what grows only while it does.

Called by the judge on the training thread at the end of a step; the machine's memory is judged on the
recorder's (`machine_watch.py`). A reading takes some microseconds and 0.01 % of the time, 0.05 % where memory
rises; a look at the heap is taken in slices of some milliseconds, less than 2 % of the time after the first
30 ms, and only on suspicion.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence, Sized
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal

from ..delivery.host_memory import MemorySample
from ..detectors.base import Finding
from ..detectors.memory import Growth, GrowthDetector
from ..detectors.resources import ResourceLimits
from .certainty import HELD_BYTES, HELD_FRACTION, Certainty, bytes_left
from .follow_turns import FollowTurns
from .heap_meter import HeapMeter, Highest, Pacer, cuda_reader, device_use, heap_reader, own_bytes
from .leak_reports import (
    MemoryIncident,
    leak_finding,
    loop_stack,
    stack_to,
    unexplained_finding,
)
from .look_bars import LookBars
from .machine_watch import MachineWatch
from .object_watch import ObjectWatch
from .process_watch import ProcessWatch
from .reachable import user_frames
from .time_slices import LookBudget, TimeSlice

if TYPE_CHECKING:
    from .heap_looks import Look
    from .leaks import Leak, LeakSearch, Suspect
    from .open_look import OpenLook

LOOKS: Final = tuple(
    f"probe.memory.{name}"
    for name in (
        *("heap_kinds", "heap_walk", "heap_names", "plain_size", "heap_looks"),
        *("source_parts", "growth_lines", "bounded", "leaks", "followed", "open_look"),
    )
)
"""Modules that only a look needs, each after those that it imports: 20 ms to load all of them."""
_MIB: Final = 2**20
_FLOOR: Final = 64 * 1024.0
"""Less growth over a window is none: the detectors' own histories fill up in the first steps."""
_LOOK_STEPS: Final = (10, 40, 160)
"""Steps from the first look to each comparison with it; then memory must grow further before the next."""
_QUIET_READINGS: Final = 8
"""Readings in a row without growth that end a series of looks."""
_MAX_REPORTS: Final = 5


class LeakWatch:
    """Follows one training loop's memory.

    Args:
        clock_ns: a clock that only goes forward.
        read_heap: reads the bytes in use on the host; None where nothing tells them.
        read_process: reads the process's own resident bytes; None of them: not known.
        pacer: when allocators are read.
        object_pacer: when Python's objects are counted.
        budget: when there may be a slice of a look.
        limits: of what may be used of the machine.
        can_look: whether `LOOKS` are loaded; asked before the first look, and has them loaded.

    Attributes:
        looks: slices of looks at the heap, so far: a step with one is no ordinary step.
    """

    def __init__(
        self,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        read_heap: Callable[[], float] | None = None,
        read_process: Callable[[], float | None] = own_bytes,
        pacer: Pacer | None = None,
        object_pacer: Pacer | None = None,
        budget: LookBudget | None = None,
        can_look: Callable[[], bool] = lambda: True,
        limits: ResourceLimits | None = None,
    ) -> None:
        self.looks = 0
        self._clock_ns = clock_ns
        self._host, self._read_cuda = HeapMeter(read_heap), cuda_reader()
        self._can_look = can_look
        self._heap, self._cuda = GrowthDetector(floor=_FLOOR), GrowthDetector(floor=_FLOOR)
        self._process, self._machine = ProcessWatch(read_process), MachineWatch(limits)
        self._pacer, self._budget = (
            pacer or Pacer(),
            budget or LookBudget(clock_ns=clock_ns, lived_ns=time.process_time_ns()),
        )
        self._growth: Growth | None = None
        self._suspicion: Growth | None = None
        """What made the watch look."""
        self._value = 0.0
        self._quiet_readings = 0
        """In a row, without growth."""
        self._highest = Highest(_FLOOR)
        self._open: OpenLook | None = None
        """A look that is not finished."""
        self._search: LeakSearch | None = None
        """For the leaks that a finished look has found, and their lines."""
        self._first: Look | None = None
        self._newest: Look | None = None
        """What the first is compared with."""
        self._compared = 0
        self._has_compared = False
        self._suspects: list[Suspect] = []
        """The containers that have grown, at the newest comparison ..."""
        self._suspects_at = 0
        """... and the step of their lengths."""
        self._fruitless = 0
        """Series of looks that have found nothing."""
        self._place: Literal["host", "device"] = "host"
        self._bars = LookBars()
        self._objects = ObjectWatch(object_pacer)
        self._certainty = Certainty(self._objects)
        self._turns = FollowTurns()
        self._reported: set[str] = set()

    @classmethod
    def of_this_process(
        cls, *, can_look: Callable[[], bool] = lambda: True, limits: ResourceLimits | None = None
    ) -> LeakWatch:
        """Return one that reads this process's heap, where the C library tells of it."""
        return cls(read_heap=heap_reader(), can_look=can_look, limits=limits)

    def note(self, step: int, sample: MemorySample) -> None:
        """Judge a new sample of the machine, on the recorder's thread; what is found waits for `follow`.

        Args:
            step: number of the newest finished step.
            sample: about a second after the one before.
        """
        self._machine.note(step, sample)

    @property
    def wants(self) -> bool:
        """Whether `follow` has anything to do at this step, but for a look; from any thread."""
        now_ns, due_ns = self._clock_ns(), min(self._next_reading_ns, self._objects.next_ns)
        return self._machine.has_found or now_ns >= min(due_ns, self._turns.due_ns)

    @property
    def wait_ns(self) -> float:
        """How long until `follow` is to be called though nobody asks `wants`, ns; infinite: not at all.

        That is while containers are followed, and where a look is wanted that could not begin yet.
        """
        retry_ns = self._next_reading_ns if self.wants_look() else math.inf
        return max(min(self._turns.due_ns, retry_ns) - self._clock_ns(), 0.0)

    @property
    def _next_reading_ns(self) -> int:
        if not self._host.can_read and self._read_cuda is None:
            return max(self._pacer.next_ns, self._process.next_ns)
        return self._pacer.next_ns

    @property
    def is_looking(self) -> bool:
        """Whether a series of looks has been begun: each step has a part in it."""
        return self._first is not None or self._open is not None or self._search is not None

    def follow(self, step: int, frame: FrameType | None) -> list[MemoryIncident]:
        """A step has ended.

        Args:
            step: its number.
            frame: where the training thread is.

        Returns:
            What is wrong; nearly always empty.
        """
        found: list[MemoryIncident] = []
        self._turns.note(step, self._clock_ns())
        # First: a look at all there is may take longer than the run.
        has_looked = self._follow_known(step, frame)
        if self.is_looking:
            self._mark(step)
            if not has_looked and self._is_time_to_look(step):
                found, has_looked = self.look(step, frame), True
        findings = self._machine.take()
        # A reading takes up to milliseconds, too: never in one step with a slice.
        if not has_looked:
            findings += self._read_what_is_due(step)
        stack = loop_stack(frame) if findings else []
        return [*found, *(MemoryIncident(finding, stack) for finding in findings)]

    def _mark(self, step: int) -> None:
        """Note the end of a step in the first look; forget that where steps have restarted."""
        first = self._first or (None if self._open is None else self._open.look)
        if first is not None and step < first.step:
            self._end_series()
        elif first is not None:
            first.mark()

    def _end_series(self) -> None:
        self._first = self._newest = self._open = self._search = None
        self._objects.forget()

    def _read_what_is_due(self, step: int) -> list[Finding]:
        """Take the readings that are due; where memory grows, begin to look."""
        now_ns = self._clock_ns()
        findings = self._read(step) if (is_due := now_ns >= self._next_reading_ns) else []
        # A look makes and drops many objects of its own, but none between two of them.
        is_between = self._open is None and self._search is None
        if is_between and now_ns >= self._objects.next_ns:
            self._objects.read(step, now_ns)
            is_due = True
        if is_due and self.wants_look() and self._can_look() and self._budget.allows():
            self._open_look(step)
        return findings

    def _follow_known(self, step: int, frame: FrameType | None) -> bool:
        """Search for the lines of containers that were found to grow, once they hold enough to be leaks.

        Returns:
            Whether it has taken time of this step.
        """
        followed = self._turns.followed
        is_due = followed is not None and self._search is None and step >= followed.next_step
        if not is_due or not self._budget.allows():
            return False
        assert followed is not None
        time_slice = self._budget.open_slice()
        is_certain = self._certainty.of_now(self._reported, self._least_held(), self._growth)
        suspects = followed.look(step, frame, is_certain)
        if suspects:
            from .leaks import find_leaks

            files = list(dict.fromkeys(each.f_code.co_filename for each in user_frames(frame)))
            self._search = find_leaks(suspects, [], files, is_certain=is_certain)
            self._turns.followed, self._suspects, self._suspects_at = None, suspects, step
        self._budget.note(time_slice.spent_ns())
        return True

    def _read(self, step: int) -> list[Finding]:
        """Read the allocators and the process, all at one place of a step, and judge what they say."""
        started_ns, cpu_ns = self._clock_ns(), time.thread_time_ns()
        is_rising = False
        if (in_use := self._host.read()) is not None:
            value = in_use - self._remembered_bytes()
            is_open = self.is_looking or value >= self._bars.of["host"]
            self._note_growth("host", self._heap.add(step, started_ns / 1e9, value, judge=is_open))
            is_rising = self._highest.add("host", value)
        if self._read_cuda is None:
            self._read_cuda = cuda_reader()
        else:
            value = self._read_cuda()
            if (on_device := self._cuda.add(step, started_ns / 1e9, value)) is not None:
                self._note_growth("device", on_device)
            is_rising |= self._highest.add("device", value)
        findings = self._follow_process(step, started_ns)
        self._quiet_readings = self._quiet_readings + 1 if self._growth is None else 0
        self._pacer.note(started_ns, time.thread_time_ns() - cpu_ns, is_rising=is_rising)
        return findings

    def _follow_process(self, step: int, now_ns: int) -> list[Finding]:
        """Read what grows beside the allocators, once a second; growth that nothing explains is found."""
        if now_ns >= self._process.next_ns:
            self._machine.device = device_use()
        growth = self._process.follow(step, now_ns, or_else=self._machine.rss_bytes)
        if growth is None:
            return []
        if not self._host.can_read:
            self._note_growth("host", growth)
        is_leak = self._process.is_leak(growth, step, free_bytes=self._machine.free_bytes)
        leak = self._unattributed(growth) if is_leak else None
        return [] if leak is None else [leak]

    def _note_growth(self, place: Literal["host", "device"], growth: Growth | None) -> None:
        self._growth = growth
        if growth is not None:
            self._place, self._value = place, growth.value

    def wants_look(self) -> bool:
        """Whether memory grows, and what grows is not being looked for already."""
        if self.is_looking or len(self._reported) >= _MAX_REPORTS:
            return False
        if self._bars.are_passed("objects", self._objects.growth):
            return True
        # The probe's own histories fill in the first some thousand steps, ever more slowly.
        return self._bars.are_passed(self._place, self._growth)

    def _is_time_to_look(self, step: int) -> bool:
        """Whether there is something to look at now, and time for it."""
        first = self._first if self._open is None and self._search is None else None
        if first is not None and step < first.step + _LOOK_STEPS[self._compared]:
            return False
        return self._budget.allows()

    def look(self, step: int, frame: FrameType | None) -> list[MemoryIncident]:
        """Look at the heap for one slice; when a comparison has come to its end, say what has grown."""
        self.looks += 1
        time_slice = self._budget.open_slice()
        try:
            if self._search is None and not self._look_on(step, frame, time_slice):
                return []
            return self._search_on(step, frame, time_slice)
        finally:
            self._budget.note(time_slice.spent_ns())

    def _remembered_bytes(self) -> int:
        """Bytes of the heap that open looks take, megabytes at times: no growth of the script's.

        Their tables alone: what is smaller does not come from malloc.
        """
        return sum(map(sys.getsizeof, self._tables().values()))

    def _tables(self) -> dict[int, Sized]:
        """What open looks keep, by identity."""
        looks = [look.tables() for look in (self._first, self._newest, self._open) if look is not None]
        tables = chain(self._certainty.tables(), *looks)
        return {id(table): table for table in tables}

    def _open_look(self, step: int) -> None:
        """Begin a look, whose first slice is the next step's."""
        from .open_look import OpenLook

        # What no variable of the script leads to is looked for when the rest has explained nothing.
        self._open = OpenLook(
            step,
            before=self._first,
            is_wide=self._fruitless % 2 == 1,
            counts_objects=self._may_be_objects or self._certainty.are_large(self._growth),
        )
        if self._first is None:
            self._open.look.mark()
            self._objects.mark(step)

    def _look_on(self, step: int, frame: FrameType | None, time_slice: TimeSlice) -> bool:
        """Go on with a look, or begin one; return whether there is something to be searched."""
        if self._open is None:
            self._open_look(step)
        assert self._open is not None
        if not self._open.go_on(step, frame, time_slice):
            return False
        taken, self._open = self._open, None
        if self._first is None:
            self._first, self._compared, self._suspicion = taken.look, 0, self._growth
            return False
        from .leaks import find_leaks

        self._objects.compare(step, own=sum(map(len, self._tables().values())))
        files = list(dict.fromkeys(each.f_code.co_filename for each in user_frames(frame)))
        is_certain = self._certainty.of_now(self._reported, self._least_held(), self._growth)
        self._search = find_leaks(taken.suspects, taken.carried, files, is_certain=is_certain)
        self._newest = taken.look
        self._suspects, self._suspects_at = taken.suspects, taken.look.step
        self._certainty.remember(taken.grown, taken.look.sizes)
        self._compared += 1
        self._has_compared = True
        return True

    def _search_on(self, step: int, frame: FrameType | None, time_slice: TimeSlice) -> list[MemoryIncident]:
        """Go on with the search for the leaks' names and lines; report them at its end."""
        assert self._search is not None
        while True:
            try:
                next(self._search)
            except StopIteration as end:
                self._search = None
                return self._finish(step, end.value, frame)
            if time_slice.is_over():
                return []

    def _finish(self, step: int, leaks: Sequence[Leak], frame: FrameType | None) -> list[MemoryIncident]:
        """A comparison has come to its end."""
        found = self._report(step, leaks, frame)
        least = self._least_held()
        held = [each for suspect in self._suspects if _MIB <= (each := suspect.leak().held_bytes) < least]
        if found or self._compared >= len(_LOOK_STEPS) or held or self._is_quiet():
            self._bars.raise_to(
                self._place, self._value, least - max(held) if held else None, self._objects.growth
            )
            self._fruitless = 0 if found or held else self._fruitless + 1
            self._follow_from_now_on(step)
            self._end_series()
        if found:
            self._bars.double(self._place, self._value)
        return found

    def _is_quiet(self) -> bool:
        """Whether memory has stopped growing; what grows in few steps takes some to show."""
        has_grown = self._may_be_objects or self._quiet_readings < _QUIET_READINGS
        return self._compared > 1 and not has_grown

    @property
    def _may_be_objects(self) -> bool:
        """Whether Python's objects grow, as far as is known: malloc's figures may say nothing of them."""
        return self._objects.growth is not None or not self._objects.has_verdict

    def _follow_from_now_on(self, step: int) -> None:
        """Ask what may come to hold enough for its length, instead of looking for it anew."""
        from .followed import FollowedContainers

        least = self._least_held()
        is_open = [suspect for suspect in self._suspects if suspect.leak().subject not in self._reported]
        self._turns.followed = FollowedContainers(
            is_open, step, lambda leak: bytes_left(leak, least), seen_at=self._suspects_at
        )

    def _least_held(self) -> float:
        return max(HELD_BYTES, HELD_FRACTION * (self._process.own_bytes or 0.0))

    def _report(self, step: int, leaks: Sequence[Leak], frame: FrameType | None) -> list[MemoryIncident]:
        if not leaks or len(self._reported) >= _MAX_REPORTS:
            return []
        self._reported |= {leak.subject for leak in leaks}
        finding = leak_finding(
            step, leaks, self._growth or self._suspicion, free_bytes=self._machine.free_bytes
        )
        return [MemoryIncident(finding, stack_to(leaks[0].line, frame))]

    def _unattributed(self, growth: Growth) -> Finding | None:
        """Growth of the process that no container of the script explains; said once."""
        if self._reported:
            return None
        self._reported.add("process")
        looks = None if self._first is None or self._newest is None else (self._first, self._newest)
        return unexplained_finding(
            growth, free_bytes=self._machine.free_bytes, has_looked=self._has_compared, looks=looks
        )
