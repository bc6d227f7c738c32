"""A leak watch that reads and looks at every step, however long that takes: for tests of what it finds.

Tests may share a process with thousands of others: malloc's heap has ten thousand holes there, which it
counts one by one, and a watch that asks what a reading costs would give it up; and a twentieth of the process
is more than a test's leak.
"""

from __future__ import annotations

from probe.memory.heap_meter import HeapMeter, Pacer, heap_reader
from probe.memory.leak_watch import LeakWatch
from probe.memory.time_slices import LookBudget, TimeSlice


class EveryStep(Pacer):
    """Reads at every step, however long a reading takes."""

    def note(self, started_ns: int, took_ns: int, *, is_rising: bool = False) -> None:
        return


class AllTheTime(LookBudget):
    """Allows a slice at every step, and as long a one as is needed."""

    def allows(self) -> bool:
        return True

    def open_slice(self) -> TimeSlice:
        return TimeSlice(10**11)


class PatientMeter(HeapMeter):
    """Never gives up."""

    def read(self) -> float | None:
        return None if self._read is None else self._read()


def patient_watch(*, object_pacer: Pacer | None = None) -> LeakWatch:
    """Return a watch of this process's heap."""
    watch = LeakWatch(
        read_heap=heap_reader(),
        read_process=lambda: 1.0,
        pacer=EveryStep(),
        object_pacer=object_pacer,
        budget=AllTheTime(),
    )
    watch._host = PatientMeter(heap_reader())
    return watch
