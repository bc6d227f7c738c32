"""Lost and evicted records are told on the timeline: once, and again when it has become far more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_recorder import START, frame, records

from probe.delivery.journal.segment_files import list_segments
from probe.delivery.recorder.gap_watch import GapWatch
from probe.delivery.recorder.recorder import Recorder
from probe.wire import Event, Frame, Gap


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path, START, connect="", cap_bytes=4096)
    yield recorder
    recorder.close(outcome="finished", last_step=None)


def watch_of(recorder: Recorder) -> GapWatch:
    return GapWatch(START, "net", recorder=recorder, last_step=lambda: 41)


def lose(recorder: Recorder, count: int) -> None:
    for _ in range(count):
        recorder.frame(Frame(step=0, time=0.0, scalars={"loss": object()}))  # type: ignore[dict-item]
    recorder.flush()


def test_nothing_lost_is_nothing_told(recorder: Recorder) -> None:
    recorder.frame(frame(1))
    recorder.flush()
    assert watch_of(recorder).look() == []


def test_lost_records_are_one_event_until_they_are_ten_times_as_many(recorder: Recorder) -> None:
    watch = watch_of(recorder)
    lose(recorder, 3)
    (event,) = watch.look()
    assert (event.kind, event.severity, event.step, event.evidence.value) == ("data_gap", "warning", 41, 3.0)
    assert event.message.startswith("3 records of this run could not be written and are lost: a Frame does")
    assert event.advice
    lose(recorder, 26)
    assert watch.look() == []
    lose(recorder, 1)
    (later,) = watch.close()
    assert later.evidence.value == 30.0


def test_evicted_frames_are_told_with_their_number(recorder: Recorder) -> None:
    recorder._journal._segment_bytes = 1024
    watch = watch_of(recorder)
    for step in range(400):
        recorder.frame(frame(step))
        recorder.flush()
    oldest = list_segments(recorder.folder, "metrics")[0].first_seq
    gaps = [record for record in records(recorder.folder, "events") if isinstance(record, Gap)]
    assert sum(gap.end_seq - gap.first_seq for gap in gaps) == oldest > 0
    (event,) = watch.look()
    assert (event.severity, event.evidence.value) == ("info", float(oldest))


def test_the_recorders_thread_writes_the_event_by_itself(recorder: Recorder) -> None:
    recorder.look_with(watch_of(recorder))
    lose(recorder, 1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = [record for record in records(recorder.folder, "events") if isinstance(record, Event)]
        if found:
            break
        time.sleep(0.05)
    assert [event.kind for event in found] == ["data_gap"]


def test_error_of_its_own_does_not_end_the_thread_that_writes(recorder: Recorder) -> None:
    def fail() -> int:
        raise RuntimeError("planted")

    watch = GapWatch(START, "net", recorder=recorder, last_step=fail)
    lose(recorder, 1)
    assert watch.look() == []
    recorder.look_with(watch)
    recorder.frame(frame(1))
    deadline = time.monotonic() + 30
    while not records(recorder.folder, "metrics") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert records(recorder.folder, "metrics") == [frame(1)]
