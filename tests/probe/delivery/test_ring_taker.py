"""Taking the ring of a dead writer: once, also when the taker is killed, and whatever lies there."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.delivery.helper.ring_taker import take_ring
from probe.delivery.journal import journal_reader
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import StreamFollower, read_stream
from probe.delivery.journal.ring_rest import read_ring, rest_of
from probe.delivery.recorder import ring_header
from probe.delivery.recorder.metrics_queue import MetricsQueue
from probe.delivery.recorder.process_identity import own_identity
from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import FRAME, RECORD_HEAD
from probe.errors import JournalError
from probe.wire import Event, Frame, RunStart, decode_record, encode

RECORDS = [f"record {number}".encode() for number in range(6)]


def leave(folder: Path, *, stored: int = 2) -> None:
    """Leave a journal with the first records, and a ring of a dead process with all of them."""
    journal = JournalWriter(folder, run="run", writer="0-1")
    ring = Ring(folder / "ring", 4096)
    for record in RECORDS:
        ring.append(FRAME, record)
    if stored:
        last = list(ring.records())[stored - 1]
        ring.take(
            end=last.end,
            end_seq=last.seq + 1,
            records=stored,
            next_seq=0,
            store=lambda: journal.append_many("metrics", RECORDS[:stored]) and None,
        )
    journal.close()
    kill(folder / "ring")


def kill(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(ring_header.OWNER_AT + 8)
        file.write(struct.pack("<q", own_identity().started_ticks - 1))


def journal_of(folder: Path) -> list[bytes]:
    return [data for _, data in read_stream(folder, "metrics")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "0-1"


@pytest.mark.parametrize("stored", [0, 2, 6])
def test_taker_completes_the_stream_and_removes_the_ring(folder: Path, stored: int) -> None:
    leave(folder, stored=stored)
    assert take_ring(folder)
    assert not (folder / "ring").exists()
    assert list(read_stream(folder, "metrics")) == list(enumerate(RECORDS))


@pytest.mark.parametrize("written", range(5))
def test_taker_killed_in_the_middle_is_followed_by_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    leave(folder)
    append = JournalWriter.append_many

    def killed(self: JournalWriter, stream: str, records: list[bytes]) -> int:
        if written:
            append(self, "metrics", records[:written])
        raise JournalError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "append_many", killed)
        assert not take_ring(folder)
    assert journal_of(folder) == RECORDS  # by a reader, while nobody has taken the rest
    assert take_ring(folder) and take_ring(folder)
    assert list(read_stream(folder, "metrics")) == list(enumerate(RECORDS))


def test_follower_gives_the_ring_once_and_goes_on_when_it_is_taken(folder: Path) -> None:
    leave(folder)
    follower = StreamFollower(folder, "metrics", to_end=True)
    found: list[bytes] = []
    while (chunk := follower.poll(max_bytes=12)) is not None:
        found += getattr(chunk, "records", [])
    assert found == RECORDS and follower.next_seq == len(RECORDS)
    assert take_ring(folder)
    assert follower.poll() is None


def test_taker_leaves_a_living_writer_alone(folder: Path) -> None:
    JournalWriter(folder, run="run", writer="0-1").close()
    ring = Ring(folder / "ring", 4096)
    ring.append(FRAME, RECORDS[0])
    assert not take_ring(folder)
    assert (folder / "ring").exists() and journal_of(folder) == []
    ring.close()


def begin(folder: Path) -> None:
    """Write who it is: what tells of a loss tells it of somebody."""
    journal = JournalWriter(folder, run="run", writer="0-1")
    journal.append("events", encode(RunStart(run="run", rank=0, incarnation=1)))
    journal.close()


def damaged(folder: Path, how: str) -> bytes:
    """Return what somebody has put in the place of a writer's ring."""
    own, other = (folder / "ring").read_bytes(), folder.parent / "0-2"
    if how == "another incarnation's":
        leave(other)
    elif how == "another run's":
        leave(other := folder.parents[1] / "other" / folder.name)
    elif how == "another rank's":
        leave(other := folder.parent / "1-1")
    elif how == "its other ring":
        Ring(folder / "ring-1", 4096).append(FRAME, b"foreign")
        return (folder / "ring-1").read_bytes()
    else:
        return {
            "nothing": b"",
            "random bytes": random.Random(7).randbytes(300_000),
            "zeros": bytes(300_000),
            "cut in its header": own[:2000],
            "cut in its data": own[: ring_header.HEADER_BYTES + 100],
            "damaged marks": own[:128] + bytes(128) + own[256:],
        }[how]
    return (other / "ring").read_bytes()


ODD = ["another incarnation's", "another run's", "another rank's", "its other ring", "nothing",
       "random bytes", "zeros", "cut in its header", "cut in its data", "damaged marks"]  # fmt: skip


@pytest.mark.parametrize("how", ODD)
def test_what_is_not_the_writers_ring_is_told_once_and_never_read(folder: Path, how: str) -> None:
    begin(folder)
    leave(folder)
    (folder / "ring").write_bytes(found := damaged(folder, how))
    (folder / "ring-1").unlink(missing_ok=True)
    os.utime(folder / "ring", (1.0, 1.0))
    assert journal_of(folder) == RECORDS[:2]
    by_reader = gaps_of(folder)
    ((_, event),) = by_reader
    assert event.kind == "data_gap" and "`ring`, where a killed run leaves its newest steps" in event.message
    assert event.evidence.value is None
    assert take_ring(folder) and take_ring(folder)
    assert gaps_of(folder) == by_reader and journal_of(folder) == RECORDS[:2]
    assert (folder / "unread-ring").read_bytes() == found and not (folder / "ring").exists()


@pytest.mark.parametrize("at", ["its beginning", "a taking before"])
def test_ring_that_is_older_than_the_journal_is_told_and_never_read(folder: Path, at: str) -> None:
    begin(folder)
    journal = JournalWriter(folder, run="run", writer="0-1")
    ring = Ring(folder / "ring", 4096)
    copies = []
    for number, record in enumerate(RECORDS):
        ring.append(FRAME, record)
        copies.append((folder / "ring").read_bytes())
        (newest,) = ring.records()
        ring.take(
            end=newest.end,
            end_seq=newest.seq + 1,
            records=1,
            next_seq=number,
            store=lambda data=record: journal.append_many("metrics", [data]) and None,  # type: ignore[misc]
        )
    journal.close()
    (folder / "ring").write_bytes(copies[0 if at == "its beginning" else 3])
    kill(folder / "ring")
    assert journal_of(folder) == RECORDS
    ((_, event),) = gaps_of(folder)
    assert "it is older than the journal" in event.message
    assert take_ring(folder)
    assert journal_of(folder) == RECORDS and len(gaps_of(folder)) == 1


def test_ring_that_is_just_being_made_is_not_told(folder: Path) -> None:
    owner = own_identity()
    journal = JournalWriter(folder, run="run", writer="0-1")
    start = RunStart(
        run="run", rank=0, incarnation=1, pid=owner.pid, boot=owner.boot, started_ticks=owner.started_ticks
    )
    journal.append("events", encode(start))
    journal.close()
    (folder / "ring").write_bytes(b"")
    assert gaps_of(folder) == []


def test_ring_of_another_version_is_left_alone(folder: Path) -> None:
    begin(folder)
    leave(folder)
    data = bytearray((folder / "ring").read_bytes())
    data[8:16] = struct.pack("<q", ring_header.VERSION + 1)
    (folder / "ring").write_bytes(data)
    assert take_ring(folder) and gaps_of(folder) == [] and (folder / "ring").read_bytes() == data


@pytest.mark.parametrize("beside", [1, 40])
def test_records_that_waited_beside_a_full_ring_leave_it_as_new_as_the_journal(
    folder: Path, beside: int
) -> None:
    begin(folder)
    journal = JournalWriter(folder, run="run", writer="0-1")
    queue = MetricsQueue(folder, journal, lambda _: None)
    frames = [encode(Frame(step=step, time=1.0, scalars={"loss": 1.0})) for step in range(5000)]
    count = 0
    while not queue._beside:
        queue.append(FRAME, frames[count])
        count += 1
    for data in frames[count : count + beside]:
        queue.append(FRAME, data)
    queue.write(everything=True)
    queue.append(FRAME, frames[count + beside])
    journal.close()
    kill(folder / "ring")
    assert journal_of(folder) == frames[: count + beside + 1]
    assert gaps_of(folder) == []


def test_taker_goes_on_with_the_next_ring(folder: Path) -> None:
    leave(folder)
    ring = Ring(folder / "ring-1", 8192)
    ring.append(FRAME, b"of a larger model")
    kill(folder / "ring-1")
    assert journal_of(folder) == [*RECORDS, b"of a larger model"]
    assert take_ring(folder)
    assert journal_of(folder) == [*RECORDS, b"of a larger model"]
    assert not list(folder.glob("ring*"))


def leave_torn(folder: Path, *, events: bool = True) -> None:
    """Leave two stored frames, two in the ring, and behind them two of which the first is torn."""
    journal = JournalWriter(folder, run="run", writer="0-1")
    if events:
        journal.append("events", encode(RunStart(run="run", rank=0, incarnation=1)))
    frames = [encode(Frame(step=step, time=1.0, scalars={"loss": 1.0})) for step in range(6)]
    ring = Ring(folder / "ring", 4096)
    for frame in frames[:2]:
        ring.append(FRAME, frame)
    ring.take(
        end=ring.counters.head,
        end_seq=2,
        records=2,
        next_seq=0,
        store=lambda: journal.append_many("metrics", frames[:2]) and None,
    )
    journal.close()
    for frame in frames[2:4]:
        ring.append(FRAME, frame)
    start = ring.counters.head
    for frame in frames[4:]:
        ring.append(FRAME, frame)
    data = bytearray((folder / "ring").read_bytes())
    data[ring_header.HEADER_BYTES + start + RECORD_HEAD.size] ^= 1
    (folder / "ring").write_bytes(data)
    kill(folder / "ring")


def gaps_of(folder: Path) -> list[tuple[int, Event]]:
    """Number and content of every event."""
    decoded = ((seq, decode_record(data)) for seq, data in read_stream(folder, "events"))
    return [(seq, record) for seq, record in decoded if isinstance(record, Event)]


def test_torn_records_are_told_by_readers_and_taker_alike(folder: Path) -> None:
    leave_torn(folder)
    by_reader = gaps_of(folder)
    ((seq, event),) = by_reader
    assert (seq, event.kind, event.step, event.evidence.value) == (1, "data_gap", 3, 2.0)
    assert "2 of the newest records" in event.message
    assert take_ring(folder) and not (folder / "ring").exists()
    assert gaps_of(folder) == by_reader
    assert [seq for seq, _ in read_stream(folder, "metrics")] == [0, 1, 2, 3]


def test_torn_records_are_told_once_by_a_taker_that_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_torn(folder)

    def killed(self: JournalWriter, stream: str, records: list[bytes]) -> int:
        raise JournalError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "append_many", killed)
        assert not take_ring(folder)
    assert len(gaps_of(folder)) == 1
    assert take_ring(folder)
    assert len(gaps_of(folder)) == 1


def test_intact_ring_and_one_of_nobody_tell_of_no_loss(folder: Path) -> None:
    leave(folder)
    assert gaps_of(folder) == []
    (folder / "ring").unlink()
    leave_torn(folder, events=False)
    assert gaps_of(folder) == [] and take_ring(folder)


def make_header_older(path: Path, *, by: int) -> None:
    """As where C code has written `by` records of 32 bytes: it leaves the file's header alone."""
    counters = ring_header.Counters(*ring_header.COUNTERS.unpack_from(path.read_bytes()))
    older = counters._replace(head=counters.head - 32 * by, next_seq=counters.next_seq - by)
    with path.open("r+b") as file:
        file.write(ring_header.COUNTERS.pack(*older))


@pytest.mark.parametrize("by", [1, 4])
def test_records_that_the_header_does_not_know_are_taken(folder: Path, by: int) -> None:
    leave(folder)
    make_header_older(folder / "ring", by=by)
    assert take_ring(folder)
    assert list(read_stream(folder, "metrics")) == list(enumerate(RECORDS))


@pytest.mark.parametrize(
    ("how", "lost"),
    [("mapped", 0), ("another boot", 1), ("written by pwrite", 1), ("mapped, header knows it", 1)],
)
def test_torn_record_is_lost_unless_it_was_never_whole(folder: Path, how: str, lost: int) -> None:
    """A trainer killed while it appends leaves a head without its checksum: its step had not ended."""
    leave(folder)
    path = folder / "ring"
    if "knows" not in how:
        make_header_older(path, by=1)
    data = bytearray(path.read_bytes())
    at = ring_header.HEADER_BYTES + 32 * (len(RECORDS) - 1) + RECORD_HEAD.size
    assert data[at : at + 8] == RECORDS[-1][:8]
    data[at] ^= 1
    counters = ring_header.Counters(*ring_header.COUNTERS.unpack_from(data))
    if how == "written by pwrite":
        ring_header.COUNTERS.pack_into(data, 0, *counters._replace(descriptor=7))
    if how == "another boot":
        data[ring_header.OWNER_AT + 16] ^= 1
        past = time.time() - 3600
    path.write_bytes(data)
    if how == "another boot":
        os.utime(path, (past, past))
    image = read_ring(path)
    assert image is not None
    rest = rest_of(image, metrics_end=2)
    assert (rest.records, rest.lost) == (RECORDS[2:-1], lost)


def test_trainer_killed_while_it_appends_tells_of_no_loss(folder: Path) -> None:
    """Before the checksum is there, as `Ring.append` and C code leave it."""
    journal = JournalWriter(folder, run="run", writer="0-1")
    journal.append("events", encode(RunStart(run="run", rank=0, incarnation=1)))
    journal.close()
    ring = Ring(folder / "ring", 4096)
    assert ring.is_mapped
    frames = [encode(Frame(step=step, time=1.0, scalars={"loss": 1.0})) for step in range(4)]
    for frame in frames:
        ring.append(FRAME, frame)
    start = ring.counters.head
    ring.append(FRAME, frames[0])
    data = bytearray((folder / "ring").read_bytes())
    data[ring_header.HEADER_BYTES + start : ring_header.HEADER_BYTES + start + 8] = bytes(8)
    (folder / "ring").write_bytes(data)
    make_header_older(folder / "ring", by=1)
    kill(folder / "ring")
    assert gaps_of(folder) == [] and take_ring(folder) and gaps_of(folder) == []
    assert [data for _, data in read_stream(folder, "metrics")] == frames


@pytest.mark.parametrize("taken", ["before it is looked for", "while it is read", "after it was read"])
def test_reader_beside_a_taker_gives_every_record_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    leave(folder)
    is_taken: list[bool] = []

    def take_first(real: Callable[..., object], *, after: bool = False) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            found = real(*arguments, **keywords) if after else None
            if not is_taken:
                is_taken.append(True)
                assert take_ring(folder)
            return found if after else real(*arguments, **keywords)

        return call

    if taken == "before it is looked for":
        monkeypatch.setattr(journal_reader, "has_ring", take_first(journal_reader.has_ring))
    else:
        follower = journal_reader.StreamFollower
        replaced = take_first(follower._ring_records, after=taken == "after it was read")
        monkeypatch.setattr(follower, "_ring_records", replaced)
    assert list(read_stream(folder, "metrics")) == list(enumerate(RECORDS)) and is_taken


def test_records_of_the_round_before_are_left_alone(folder: Path) -> None:
    """Behind the newest record lie older ones, intact, which the journal has."""
    journal = JournalWriter(folder, run="run", writer="0-1")
    ring = Ring(folder / "ring", 400)
    written = []
    for number in range(14):
        written.append(f"record {number:02}".encode())
        ring.append(FRAME, written[-1])
        (newest,) = ring.records()
        if number < 13:
            ring.take(
                end=newest.end,
                end_seq=newest.seq + 1,
                records=1,
                next_seq=number,
                store=lambda: journal.append_many("metrics", written[-1:]) and None,
            )
    journal.close()
    kill(folder / "ring")
    assert take_ring(folder)
    assert journal_of(folder) == written
