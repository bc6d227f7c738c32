"""The ring in memory and its file: what is appended is read again, and a torn record is seen."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.delivery.journal.ring_rest import read_rest, read_ring, ring_paths
from probe.delivery.recorder import file_mapping, ring_header
from probe.delivery.recorder.process_identity import is_alive, own_identity
from probe.delivery.recorder.ring import Ring, capacity_for
from probe.delivery.recorder.ring_format import (
    ADDITION,
    FRAME,
    HAS_LOSS,
    HAS_MISSING,
    HAS_NORM,
    RAW,
    RAW_COLUMNS,
    RAW_HEAD,
    Template,
    checksum,
    metrics_of,
    raw_bytes,
    record_bytes,
)
from probe.wire import Frame, decode_record, encode
from probe.wire.columns import pack_block

CAPACITY = 4096
TEMPLATE = Template(layout=2, stage="local", scalars=["lr", "log/x"])


@pytest.fixture
def pwrite_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is mapped."""
    monkeypatch.setattr("probe.delivery.recorder.ring.map_written_file", lambda *_: None)


@pytest.fixture(params=["mapped", "pwrite"])
def ring(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ring]:
    if request.param == "pwrite":
        request.getfixturevalue("pwrite_alone")
    ring = Ring(tmp_path / "ring", CAPACITY)
    if request.param == "mapped" and ring.counters.descriptor >= 0:
        ring.close()
        pytest.skip("files are not mapped on this file system")
    yield ring
    ring.close()


def frame(step: int, **scalars: float) -> Frame:
    return Frame(step=step, time=float(step), scalars=scalars)


def take_all(ring: Ring, next_seq: int = 0) -> list[bytes]:
    """Take what is in the ring, as the recorder does."""
    taken = list(metrics_of(ring.records(), ring.templates))
    if taken:
        last = taken[-1][1][-1]
        ring.take(
            end=last.end, end_seq=last.seq + 1, records=len(taken), next_seq=next_seq, store=lambda: None
        )
    return [data for data, _ in taken if data is not None]


def raw_payload(*, number: int, step: int = 7, missing: bool = False) -> bytes:
    block = np.arange(1, 13, dtype="<f4").reshape(4, 3)
    flags = HAS_LOSS | HAS_NORM | (HAS_MISSING if missing else 0)
    head = RAW_HEAD.pack(step, 1.5, number, 3, 0.25, 0.5, 2.0, 8.0, flags, 2, *[0] * 6)
    bitmap = np.packbits(np.array([False, True, False])).tobytes() if missing else b""
    return head + struct.pack("<2d", 0.1, float("nan")) + block.tobytes() + bitmap


def reference_checksum(record: bytes) -> int:
    words = struct.unpack(f"<{len(record) // 8 - 1}Q", record[8:])
    total = 0x9E3779B97F4A7C15
    for index, word in enumerate(words):
        total += word * (2 * index + 1)
    return total % 2**64


def test_ring_gives_back_what_was_appended_in_order(ring: Ring) -> None:
    payloads = [bytes([step]) * (step + 1) for step in range(20)]
    assert all(ring.append(FRAME, payload) for payload in payloads)
    read = list(ring.records())
    assert [bytes(record.payload) for record in read] == payloads
    assert [record.seq for record in read] == list(range(20))


def test_ring_file_holds_the_bytes_of_the_memory(ring: Ring, tmp_path: Path) -> None:
    for step in range(300):
        ring.append(FRAME, encode(frame(step)))
        take_all(ring)
    data = (tmp_path / "ring").read_bytes()
    assert data[ring_header.HEADER_BYTES :] == bytes(ring._view[ring_header.HEADER_BYTES :])
    counters = ring_header.read_counters(data)
    assert counters is not None and counters.head == ring.counters.head and counters.next_seq == 300
    assert (tmp_path / "ring").stat().st_mode & 0o777 == 0o600


def test_ring_record_has_the_checksum_of_the_format(ring: Ring) -> None:
    ring.append(FRAME, b"some bytes")
    record = bytes(ring._view[4096 : 4096 + record_bytes(10)])
    check, length, kind, seq = struct.unpack_from("<QIIQ", record)
    assert (check, length, kind, seq) == (reference_checksum(record), 10, FRAME, 0)
    assert record[24:] == b"some bytes" + bytes(6)


@pytest.mark.parametrize("words", [1, 8191, 8192, 8193, 16384, 40_001])
def test_ring_checksum_of_a_long_record_is_added_up_in_parts(words: int) -> None:
    record = np.random.default_rng(words).integers(0, 2**63, words + 1, dtype=np.uint64) * np.uint64(2)
    record += np.uint64(1)
    assert checksum(record[1:]) == reference_checksum(record.tobytes())


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 1500), max_size=60), keep=st.integers(0, 3))
def test_ring_never_wraps_a_record_and_never_loses_one(sizes: list[int], keep: int) -> None:
    ring = Ring(None, CAPACITY)
    waiting: list[bytes] = []
    for index, size in enumerate(sizes):
        payload = bytes([index % 251]) * size
        if ring.append(FRAME, payload):
            waiting.append(payload)
        assert [bytes(record.payload) for record in ring.records()] == waiting
        while len(waiting) > keep:
            record = next(ring.records())
            ring.take(end=record.end, end_seq=record.seq + 1, records=1, next_seq=0, store=lambda: None)
            del record, waiting[0]
    counters = ring.counters
    assert counters.head - counters.tail <= CAPACITY


def test_ring_without_room_appends_nothing(ring: Ring) -> None:
    while ring.append(FRAME, bytes(500)):
        pass
    before = ring.counters
    assert not ring.append(FRAME, bytes(500))
    assert ring.counters == before and ring.is_wanted
    take_all(ring)
    assert ring.append(FRAME, bytes(500)) and not ring.is_empty


def test_ring_append_amid_an_append_follows_it(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    put, calls = ring._put, itertools.count()

    def interrupted(head: int, kind: int, payload: bytes) -> None:
        if next(calls) == 0:
            assert ring.append(FRAME, b"second")
        put(head, kind, payload)

    monkeypatch.setattr(ring, "_put", interrupted)
    ring.append(FRAME, b"first")
    assert [bytes(record.payload) for record in ring.records()] == [b"first", b"second"]


@pytest.mark.parametrize("offset", [8, 12, 16])
def test_ring_record_without_a_head_ends_the_reading(ring: Ring, offset: int) -> None:
    for payload in (b"one", b"two is torn here", b"three"):
        ring.append(FRAME, payload)
    ring._memory[4096 + record_bytes(3) + offset] ^= 0xFF
    assert [bytes(record.payload) for record in ring.records()] == [b"one"]


def test_ring_raw_record_is_the_frame_that_a_measured_step_builds(ring: Ring) -> None:
    number = ring.write_template(TEMPLATE)
    assert number == 1
    ring.append(RAW, raw_payload(number=number, missing=True))
    (encoded,) = take_all(ring)
    assert decode_record(encoded) == Frame(
        step=7,
        time=1.5,
        layout=2,
        scalars={"loss": 0.25, "loss_raw": 0.5, "grad_norm": 2.0, "samples": 8.0, "lr": 0.1},
        columns=pack_block(RAW_COLUMNS, np.arange(1, 13, dtype=np.float64).reshape(4, 3)),
        missing=np.packbits(np.array([False, True, False])).tobytes(),
    )


def test_ring_additions_become_one_frame_with_their_step(ring: Ring) -> None:
    number = ring.write_template(TEMPLATE)
    assert number is not None
    ring.append(RAW, raw_payload(number=number))
    ring.append(ADDITION, encode(frame(7, **{"log/x": 3.0})))
    ring.append(FRAME, encode(frame(8, loss=1.0)))
    ring.append(ADDITION, encode(frame(8, loss=2.0)))
    ring.append(ADDITION, encode(frame(5, late=1.0)))
    read = [decode_record(data) for data in take_all(ring)]
    assert [record.step for record in read if isinstance(record, Frame)] == [7, 8, 5]
    assert isinstance(read[0], Frame) and read[0].scalars["log/x"] == 3.0
    assert read[1] == frame(8, loss=2.0)


def test_ring_third_template_waits_for_the_records_of_the_first(ring: Ring) -> None:
    first = ring.write_template(TEMPLATE)
    assert first == 1
    ring.append(RAW, raw_payload(number=first))
    assert ring.write_template(TEMPLATE) == first
    assert ring.write_template(Template(layout=3, stage="local", scalars=[])) == 2
    assert ring.write_template(Template(layout=4, stage="local", scalars=[])) is None
    take_all(ring)
    assert ring.write_template(Template(layout=4, stage="local", scalars=[])) == 3
    assert set(ring.templates) == {2, 3}
    assert ring.write_template(Template(layout=5, stage="local", scalars=["x" * 2000])) is None


def test_ring_without_a_file_says_why_and_works(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "missing" / "ring", CAPACITY)
    assert ring.problem is not None and "cannot be written" in ring.problem
    assert ring.append(FRAME, b"kept") and take_all(ring) == [b"kept"]


def _full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no space")


@pytest.mark.usefixtures("pwrite_alone")
def test_ring_whose_file_the_script_has_closed_is_whole_in_it_after_a_check(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", CAPACITY)
    ring.append(FRAME, b"before")
    number = ring.counters.descriptor
    script = os.open(tmp_path / "of the script", os.O_RDWR | os.O_CREAT)
    os.dup2(script, number)
    ring.append(FRAME, b"meanwhile")
    ring.check()
    ring.append(FRAME, b"after")
    assert os.path.getsize(tmp_path / "of the script") == 0 and ring.problem is None
    assert ring.leave()
    os.close(number)  # still open: it is the script's
    os.close(script)
    assert read_rest(tmp_path, metrics_end=0) == [b"before", b"meanwhile", b"after"]


@pytest.mark.usefixtures("pwrite_alone")
def test_ring_that_cannot_write_its_file_any_more_removes_it(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", CAPACITY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", _full_disk)
        assert ring.append(FRAME, b"kept")
    assert ring.problem is not None and not (tmp_path / "ring").exists()
    assert take_all(ring) == [b"kept"]


def test_killed_process_has_written_each_record_to_the_file(ring: Ring, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        for number in range(100):
            ring.append(FRAME, b"record %d" % number)
            if number % 4 == 3 and number < 96:
                take_all(ring, number - 3)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert read_rest(dead(tmp_path / "ring"), metrics_end=96) == [b"record %d" % n for n in range(96, 100)]


@pytest.mark.parametrize("magic", [0x9123683E, 0x6969, 0x794C7630, 0x65735546, 0x2FC12FC1, None])
def test_file_is_mapped_only_where_pages_are_written_in_place(
    magic: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """btrfs, NFS, an overlay, FUSE, ZFS, and where nothing tells."""
    monkeypatch.setattr(file_mapping, "file_system", lambda _: magic)
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        assert file_mapping.map_written_file(file.fileno(), 4096) is None


def test_mapped_file_is_unmapped_with_the_last_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5000))
    with path.open("r+b") as file:
        memory = file_mapping.map_written_file(file.fileno(), 5000)
    if memory is None:
        pytest.skip("files are not mapped on this file system")
    maps = Path("/proc/self/maps")
    memory[-1] = 7
    assert str(path) in maps.read_text() and path.read_bytes()[-1] == 7
    del memory
    assert str(path) not in maps.read_text()


def test_file_system_is_the_one_that_stat_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    named = subprocess.run(["stat", "-f", "-c", "%t", tmp_path], capture_output=True, text=True, check=True)
    with (tmp_path / "file").open("r+b") as file:
        assert file_mapping.file_system(file.fileno()) == int(named.stdout, 16)
    assert file_mapping.file_system(-1) is None


def test_capacity_for_holds_40_steps_within_its_limits() -> None:
    assert capacity_for(4) == 256 * 1024
    assert capacity_for(10**6) == 8 * 1024**2
    assert capacity_for(2000) >= 40 * raw_bytes(2000, 20) and capacity_for(2000) % 8 == 0


def dead(path: Path) -> Path:
    """Make a ring the one of a process that is gone."""
    with path.open("r+b") as file:
        file.seek(ring_header.OWNER_AT + 8)
        file.write(struct.pack("<q", own_identity().started_ticks - 1))
    return path.parent


def test_rest_of_a_living_writer_is_left_to_it(ring: Ring, tmp_path: Path) -> None:
    ring.append(FRAME, b"mine")
    assert read_rest(tmp_path, metrics_end=0) == []
    assert read_rest(dead(tmp_path / "ring"), metrics_end=0) == [b"mine"]


@pytest.mark.parametrize("stored", range(4))
def test_rest_goes_on_where_the_kill_broke_off(ring: Ring, tmp_path: Path, stored: int) -> None:
    ring.append(FRAME, b"taken")
    take_all(ring)
    for payload in (b"a", b"b", b"c"):
        ring.append(FRAME, payload)
    last = list(ring.records())[-1]

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ring.take(end=last.end, end_seq=last.seq + 1, records=3, next_seq=1, store=killed)
    del last
    ring.append(FRAME, b"d")
    rest = read_rest(dead(tmp_path / "ring"), metrics_end=1 + stored)
    assert rest == [b"a", b"b", b"c", b"d"][stored:]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=9000))
def test_garbage_is_no_ring(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "ring").write_bytes(data)
    assert read_rest(folder, metrics_end=0) == []


def test_damaged_ring_gives_what_is_intact_and_counts_the_rest(ring: Ring, tmp_path: Path) -> None:
    for payload in (b"one", b"two", b"three"):
        ring.append(FRAME, payload)
    data = bytearray((tmp_path / "ring").read_bytes())
    data[4096 + record_bytes(3) + 24] ^= 1
    (tmp_path / "ring").write_bytes(data)
    assert read_rest(dead(tmp_path / "ring"), metrics_end=0) == [b"one"]


def test_ring_of_another_version_is_left_alone(ring: Ring, tmp_path: Path) -> None:
    ring.append(FRAME, b"one")
    with (tmp_path / "ring").open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<q", 2))
    assert read_ring(tmp_path / "ring") is None


def test_ring_paths_are_in_the_order_of_their_beginnings(tmp_path: Path) -> None:
    for name in ("ring-10", "ring-2", "ring", "ringing", "ring-x"):
        (tmp_path / name).touch()
    assert [path.name for path in ring_paths(tmp_path)] == ["ring", "ring-2", "ring-10"]


def test_process_of_another_start_is_not_alive() -> None:
    own = own_identity()
    assert is_alive(own, silent_s=0.0)
    assert not is_alive(own._replace(started_ticks=own.started_ticks + 1), silent_s=0.0)
    assert is_alive(own._replace(boot=own.boot ^ 1, pid=2**22), silent_s=1.0)
    assert not is_alive(own._replace(boot=own.boot ^ 1), silent_s=100.0)


def test_records_that_were_read_are_not_given_again_once_they_are_taken(ring: Ring) -> None:
    """Whoever reads from wherever: what is read is what lies in the ring, though it is checked but once."""
    random = np.random.default_rng(0)
    waiting: list[tuple[bytes, int]] = []
    for turn in range(2000):
        payload = random.bytes(int(random.integers(0, 400)))
        if ring.append(FRAME, payload):
            waiting.append((payload, ring.counters.head))
        if turn % 3 == 0 and waiting:
            # The judge's way: from the end of some record on, and not all of it.
            at = int(random.integers(len(waiting)))
            reader = ring.records(waiting[at][1])
            found = [bytes(next(reader).payload) for _ in range(len(waiting) - at - 1)]
            assert found == [one for one, _ in waiting[at + 1 :]]
        if turn % 5 == 0:
            assert [bytes(record.payload) for record in ring.records()] == [one for one, _ in waiting]
        if len(waiting) > random.integers(1, 12):
            end = waiting[random.integers(len(waiting))][1]
            ring.take(end=end, end_seq=0, records=0, next_seq=0, store=lambda: None)
            waiting = [one for one in waiting if one[1] > end]


def test_records_are_those_of_the_moment_of_the_call(ring: Ring) -> None:
    """Who asks for the templates next has those of all of them: one without its template would be lost."""
    ring.append(FRAME, b"before")
    reader = ring.records()
    ring.append(FRAME, b"after")
    assert [bytes(record.payload) for record in reader] == [b"before"]
    assert [bytes(record.payload) for record in ring.records()] == [b"before", b"after"]
