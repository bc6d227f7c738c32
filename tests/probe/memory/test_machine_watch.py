"""Samples of the machine's memory: judged on another thread than the one that tells of them."""

from __future__ import annotations

import sys

import pytest

from probe.delivery.host_memory import MemorySample
from probe.memory import leak_watch
from probe.memory.leak_watch import LeakWatch
from probe.memory.machine_watch import MachineWatch
from probe.memory.memory_limit import MemoryUse

SAMPLE = MemorySample(rss_bytes=1, system_used_bytes=10, system_total_bytes=100)
SHORT = MemorySample(rss_bytes=90, system_used_bytes=95, system_total_bytes=100)


def test_samples_of_the_machine_give_the_training_thread_something_to_do_only_once_one_is_high() -> None:
    """The training thread has nothing to do for a sample: it takes what was found, with its own stack."""
    read: list[str] = []
    watch = LeakWatch(clock_ns=lambda: -1, read_heap=lambda: 1.0, read_process=lambda: read.append("pages"))
    for step in range(4):
        watch.note(step, SHORT)
    assert (watch.wants, watch.follow(3, sys._getframe())) == (False, [])
    watch.note(4, SHORT)
    assert watch.wants
    (incident,) = watch.follow(7, sys._getframe())
    assert (incident.finding.kind, incident.finding.subject) == ("high_resource_use", "memory")
    assert "at step 4" in incident.finding.message
    assert incident.stack[-1].function.startswith("test_samples_of_the_machine")
    assert (watch.wants, watch.follow(8, sys._getframe())) == (False, [])
    assert not read, "pages are read at one place of a step"


def test_reading_of_a_device_is_judged_once() -> None:
    """Samples come more often than a device is read: one reading is not five in a row."""
    watch = MachineWatch()
    for step in range(4):
        watch.device = MemoryUse(99.0, 100.0)
        for _ in range(5):
            watch.note(step, SAMPLE)
    assert not watch.has_found
    watch.device = MemoryUse(99.0, 100.0)
    watch.note(4, SAMPLE)
    assert [finding.subject for finding in watch.take()] == ["device memory"]
    assert watch.take() == []


def test_device_and_process_are_read_once_a_second_with_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(leak_watch, "device_use", lambda: read.append(step))
    now_s = 0.0
    watch = LeakWatch(
        clock_ns=lambda: int(now_s * 1e9),
        read_heap=lambda: 1.0,
        read_process=lambda: read.append(step) or 1.0,
    )
    for step in range(21):
        now_s = 1.0 + step / 10
        watch.follow(step, None)
    assert read == [0, 0, 10, 10, 20, 20]


def test_free_memory_is_that_of_the_newest_sample() -> None:
    watch = MachineWatch()
    assert watch.free_bytes is None
    watch.note(0, SAMPLE)
    assert (watch.free_bytes, watch.rss_bytes) == (90.0, 1.0)
