"""A disk that stays full: what is lost is told in the journal itself, into room that is kept for that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disk import disk_of, fill
from test_recorder import START, event, frame

from dashboard.commands.events import load_events
from dashboard.ingest.spool import ingest_spool
from dashboard.store.duck import DuckStore
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.kept_room import KEPT_BYTES, URGENT_BYTES
from probe.delivery.recorder.gap_watch import GapWatch
from probe.delivery.recorder.metrics_queue import RING_FRAMES
from probe.delivery.recorder.recorder import Recorder
from probe.errors import JournalError
from probe.wire import Event, Frame, Gap, Record, RunEnd, RunStart, decode_record

STEPS = 3 * RING_FRAMES
EVENTS = 100
"""More than have room on a disk that is full, of which 48 KiB are for them."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(tmp_path / "disk", kib=1024) as place:
        yield place


@pytest.fixture
def recorder(disk: Path) -> Iterator[Recorder]:
    recorder = Recorder(disk / "spool", START, connect="")
    yield recorder
    recorder.close(outcome="finished", last_step=None)


def watched(recorder: Recorder, at: list[int]) -> GapWatch:
    watch = GapWatch(START, "net", recorder=recorder, last_step=lambda: at[-1])
    recorder.last_words = watch.last_words
    return watch


def look(recorder: Recorder, watch: GapWatch) -> None:
    """What the recorder's thread does once a second."""
    recorder._write_of_watch(watch.look())


def of_kind(recorder: Recorder, kind: type[Record]) -> list[Record]:
    stream = "metrics" if kind is Frame else "events"
    records = [decode_record(data) for _, data in read_stream(recorder.folder, stream)]
    return [record for record in records if isinstance(record, kind)]


def lose_steps(recorder: Recorder, watch: GapWatch, disk: Path) -> list[int]:
    """Fill the disk, go on for more steps than have room in memory, and look now and then."""
    at = [0]
    recorder.frame(frame(0))
    recorder.flush()
    fill(disk)
    for number in range(EVENTS):
        recorder.event(event(number, "x" * 900))
    for step in range(1, STEPS + 1):
        recorder.frame(frame(step))
        at.append(step)
        if step % 2048 == 0:
            recorder.flush()
            look(recorder, watch)
    return at


def test_disk_that_stays_full_is_told_while_it_is_full(disk: Path, recorder: Recorder) -> None:
    watch = watched(recorder, at := [0])
    at += lose_steps(recorder, watch, disk)
    assert os.statvfs(disk).f_bavail == 0
    assert 20 < len([one for one in of_kind(recorder, Event) if one.kind != "data_gap"]) < EVENTS
    (told,) = {one.id: one for one in of_kind(recorder, Event) if one.kind == "data_gap"}.values()
    assert (told.kind, told.severity, told.ended) == ("data_gap", "warning", False)
    assert "No space left on device" in told.message
    (gap, *_) = reversed(of_kind(recorder, Gap))
    assert 0 < gap.lost <= recorder.lost_before_write
    assert gap.first_step is not None and 0 < gap.first_step <= gap.last_step < STEPS


def test_disk_that_is_full_at_the_end_leaves_the_end_and_the_whole_count(
    disk: Path, recorder: Recorder, tmp_path: Path
) -> None:
    watch = watched(recorder, [0])
    lose_steps(recorder, watch, disk)
    recorder.close(outcome="finished", last_step=STEPS)
    (end,) = of_kind(recorder, RunEnd)
    told = load_events(str(disk / "spool")).events
    written = len(of_kind(recorder, Frame)) + sum(one.kind != "data_gap" for one in told)
    assert written + end.lost_before_write == STEPS + 1 + EVENTS
    (loss,) = [one for one in told if one.kind == "data_gap"]
    assert loss.ended and loss.evidence.value == end.lost_before_write
    assert f"{end.lost_before_write:,} records are lost" in loss.message
    store = DuckStore(tmp_path / "data")
    ingest_spool(store, disk / "spool")
    (gap,) = store.gaps(START.run)
    assert (gap.count, gap.last_step) == (end.lost_before_write, STEPS)
    assert store.runs()[0].ranks[0].lost_before_write == end.lost_before_write
    store.close()


def test_loss_is_counted_by_the_store_while_the_run_goes_on(
    disk: Path, recorder: Recorder, tmp_path: Path
) -> None:
    lose_steps(recorder, watched(recorder, [0]), disk)
    store = DuckStore(tmp_path / "data")
    ingest_spool(store, disk / "spool")
    gap = [gap for gap in of_kind(recorder, Gap) if isinstance(gap, Gap)][-1]
    assert store.runs()[0].ranks[0].lost_before_write == gap.lost == store.gaps(START.run)[0].count
    store.close()


def test_disk_that_has_room_again_in_time_has_cost_nothing(disk: Path, recorder: Recorder) -> None:
    watch = watched(recorder, [0])
    recorder.frame(frame(0))
    recorder.flush()
    ballast = fill(disk)
    for step in range(1, 200):
        recorder.frame(frame(step))
        recorder.flush()
    for _ in range(2):
        look(recorder, watch)
    ballast.unlink()
    recorder.flush()
    look(recorder, watch)
    assert [one.ended for one in of_kind(recorder, Event)] == [False, True]
    assert of_kind(recorder, Event)[-1].message.startswith("Nothing could be written for")
    assert [record.step for record in of_kind(recorder, Frame)] == list(range(200))
    assert of_kind(recorder, Gap) == []


@pytest.fixture
def journal(disk: Path) -> Iterator[JournalWriter]:
    folder = disk / "spool" / "run" / "0-1"
    with contextlib.closing(
        JournalWriter(folder, run="run", writer="0-1", segment_bytes=8192, keeps_room="events")
    ) as journal:
        journal.append("events", b"x" * 100)
        yield journal


def append_until_full(journal: JournalWriter, size: int) -> int:
    count = 0
    with pytest.raises(JournalError, match="No space left"):
        while True:
            journal.append("events", b"x" * size)
            count += 1
    return count


def stored(journal: JournalWriter) -> list[bytes]:
    return [data for _, data in read_stream(journal.folder, "events")]


def test_room_that_is_kept_is_taken_by_nobody_else(disk: Path, journal: JournalWriter) -> None:
    fill(disk)
    ordinary = append_until_full(journal, 1000)
    assert (KEPT_BYTES - URGENT_BYTES) // 1100 <= ordinary <= KEPT_BYTES // 1000
    for number in range(12):
        journal.append("events", b"%d" % number + b"u" * 1000, is_urgent=True)
    assert len(stored(journal)) == 1 + ordinary + 12


def test_record_that_is_too_large_for_the_rest_leaves_the_rest_to_others(
    disk: Path, journal: JournalWriter
) -> None:
    fill(disk)
    for _ in range(3):
        with pytest.raises(JournalError, match="No space left"):
            journal.append("events", b"x" * (KEPT_BYTES + 4096))
    with pytest.raises(JournalError, match="No space left"):
        journal.append("events", b"x" * (2 * KEPT_BYTES), is_urgent=True)
    journal.append("events", b"small", is_urgent=True)
    assert stored(journal)[-1] == b"small"


def test_room_that_is_kept_is_given_back_at_the_end(disk: Path, journal: JournalWriter) -> None:
    free = os.statvfs(disk).f_bavail
    journal.close()
    assert os.statvfs(disk).f_bavail - free >= (KEPT_BYTES - 8192) // os.statvfs(disk).f_frsize


def test_place_that_cannot_keep_room_is_written_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.delivery.journal.kept_room._allocate", lambda *_: 95)
    folder = tmp_path / "run" / "0-1"
    with contextlib.closing(JournalWriter(folder, run="run", writer="0-1", keeps_room="events")) as journal:
        for number in range(3):
            journal.append("events", b"%d" % number)
        assert stored(journal) == [b"0", b"1", b"2"]


def test_start_is_read_back_where_room_is_kept(recorder: Recorder) -> None:
    (start,) = of_kind(recorder, RunStart)
    assert start == START
