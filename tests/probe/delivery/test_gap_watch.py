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
from probe.delivery.recorder.series_names import MAX_LOGGED_NAMES, SeriesNames
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
    assert "were lost" in event.advice[0] and event.advice[1].startswith("Free space")
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
    assert event.advice == ["To keep more, raise `journal_cap_mib`."], "a dashboard may have stored them"


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


def test_names_of_logged_values_are_told_once_and_with_their_last_count(recorder: Recorder) -> None:
    names = SeriesNames()
    watch = GapWatch(START, "net", recorder=recorder, names=names, last_step=lambda: 41)
    names.fit(dict.fromkeys(map(str, range(MAX_LOGGED_NAMES)), 1.0))
    assert watch.look() == []
    for count in range(12):
        names.fit({f"late {count}": 1.0, "loss": 2.0, "0": 3.0})
        told = watch.look()
        assert [event.evidence.value for event in told] == ([count + 1.0] if count in (0, 9) else [])
    (last,) = watch.close()
    assert (last.kind, last.severity, last.evidence.value) == ("data_gap", "warning", 12.0)
    assert watch.close() == []


def test_series_names_keep_long_names_apart() -> None:
    names = SeriesNames()
    one, other, short = "n" * 2000 + "a", "n" * 2000 + "b", "n" * 1024
    for _ in range(2):
        fitted = names.fit({one: 1.0, other: 2.0, short: 3.0, "\ud800" * 1025: 4.0})
        assert list(fitted.values()) == [1.0, 2.0, 3.0, 4.0]
        assert max(map(len, fitted)) <= 1024
    assert (names.cut, names.left_out) == (3, 0)
