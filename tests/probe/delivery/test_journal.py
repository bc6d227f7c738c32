"""Journals written and read back: round trips, rotation, recovery, eviction, a disk that is full."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import Skipped, end_of_stream, read_stream
from probe.delivery.journal.run_folders import read_run_json
from probe.delivery.journal.run_json import write_run_json
from probe.delivery.journal.segment_files import list_segments
from probe.errors import JournalError
from probe.wire import MAX_RECORD_BYTES, Gap, RunStart, decode_record

ROOT = Path(__file__).resolve().parents[3]
RECORDS = st.lists(st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=6), max_size=12)


def open_journal(spool: Path, writer: str = "0-1", **options: int) -> JournalWriter:
    return JournalWriter(spool / "run" / writer, run="run", writer=writer, **options)


def contents(folder: Path, stream: str = "metrics") -> list[bytes]:
    return [data for _, data in read_stream(folder, stream)]


@settings(max_examples=60, deadline=None)
@given(groups=RECORDS, segment_bytes=st.integers(150, 2000))
def test_journal_any_records_are_read_back_in_order(groups: list[list[bytes]], segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(Path(folder), segment_bytes=segment_bytes)
        for group in groups:
            if len(group) == 1:
                journal.append("metrics", group[0])
            else:
                journal.append_many("metrics", group)
        journal.close()
        written = [record for group in groups for record in group]
        assert list(read_stream(journal.folder, "metrics")) == list(enumerate(written))


@settings(max_examples=25, deadline=None)
@given(records=st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=6))
def test_journal_truncated_at_every_byte_keeps_every_whole_record(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(Path(folder))
        path = journal.folder / "metrics-00000000000000000000.seg"
        ends = []
        for record in records:
            journal.append("metrics", record)
            ends.append(path.stat().st_size)
        journal.close()
        whole = path.read_bytes()
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            skipped: list[Skipped] = []
            read = [data for _, data in read_stream(journal.folder, "metrics", on_skip=skipped.append)]
            kept = sum(end <= length for end in ends)
            holes = [(hole.first_seq, hole.end_seq) for hole in skipped]
            told = [] if kept == len(records) else [(kept, len(records))]
            assert (read, holes) == (records[:kept], told)


@settings(max_examples=15, deadline=None)
@given(records=st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4))
def test_journal_reopened_after_any_truncation_continues_the_numbers(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(Path(folder))
        journal.append_many("host", records)
        journal.close()
        path = journal.folder / "host-00000000000000000000.seg"
        whole = path.read_bytes()
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            # As an older probe has left it: nothing else says how far it went.
            (journal.folder / "account").unlink()
            kept = contents(journal.folder, "host")
            again = open_journal(Path(folder))
            seq = again.append("host", b"next")
            again.close()
            assert (seq, contents(journal.folder, "host")) == (len(kept), [*kept, b"next"])


@settings(max_examples=15, deadline=None)
@given(records=st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4), cut=st.integers(0, 200))
def test_journal_reopened_with_its_account_gives_no_number_twice(records: list[bytes], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(Path(folder))
        journal.append_many("host", records)
        journal.close()
        path = journal.folder / "host-00000000000000000000.seg"
        path.write_bytes(path.read_bytes()[: -cut or None])
        again = open_journal(Path(folder))
        assert again.append("host", b"next") == len(records)
        again.close()
        holes: list[Skipped] = []
        read = list(read_stream(journal.folder, "host", on_skip=holes.append))
        assert read[-1] == (len(records), b"next")
        assert len(read) + sum(hole.end_seq - hole.first_seq for hole in holes) == len(records) + 1


def test_journal_append_returns_consecutive_numbers_per_stream(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    numbers = [journal.append("metrics", b"a"), journal.append_many("metrics", [b"b", b"c"])]
    assert [*numbers, journal.append("events", b"d"), journal.next_seq("metrics")] == [0, 1, 0, 3]
    journal.close()


def test_journal_more_records_than_one_writev_takes_are_all_written(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    records = [str(number).encode() for number in range(5000)]
    journal.append_many("metrics", records)
    journal.close()
    assert contents(journal.folder) == records


def test_journal_full_segment_begins_the_next_with_its_number(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=280)
    for number in range(10):
        journal.append("metrics", bytes([number]) * 100)
    journal.close()
    firsts = [segment.first_seq for segment in list_segments(journal.folder, "metrics")]
    assert firsts == [0, 2, 4, 6, 8]


def test_journal_folders_are_private(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "spool")
    journal.append("events", b"x")
    journal.close()
    folders = (tmp_path / "spool", tmp_path / "spool" / "run", journal.folder)
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 3
    assert {path.stat().st_mode & 0o777 for path in journal.folder.iterdir()} == {0o600}


def test_journal_above_its_cap_evicts_oldest_metrics_and_notes_the_gap(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, cap_bytes=5000, segment_bytes=1000)
    for number in range(100):
        journal.append("metrics", bytes([number]) * 100)
    journal.close()
    skipped: list[Skipped] = []
    kept = [seq for seq, _ in read_stream(journal.folder, "metrics", on_skip=skipped.append)]
    gaps = [decode_record(data) for data in contents(journal.folder, "events")]
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 0
    holes = [(gap.first_seq, gap.end_seq) for gap in gaps if isinstance(gap, Gap)]
    assert [first for first, _ in holes] == [0, *(end for _, end in holes[:-1])]
    assert holes[-1][1] == kept[0]
    (hole,) = skipped
    assert hole.reason == "metrics of 0-1: deleted, for the journal reached its cap of 0.004768 MiB"
    list_segments(journal.folder, "metrics")[0].path.unlink()
    list(read_stream(journal.folder, "metrics", on_skip=skipped.append))
    assert skipped[1].reason == "metrics of 0-1: not in the folder"  # more than the cap has deleted


def test_small_cap_is_kept_with_segments_of_the_usual_size(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, cap_bytes=40_000)
    for number in range(1000):
        journal.append("metrics", bytes([number % 256]) * 1000)
        assert sum(path.stat().st_size for path in journal.folder.iterdir()) < 55_000
    journal.close()
    kept = [seq for seq, _ in read_stream(journal.folder, "metrics")]
    assert kept == list(range(kept[0], 1000))
    assert len(kept) > 20


def test_journal_never_evicts_events(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, cap_bytes=1000, segment_bytes=500)
    for number in range(50):
        journal.append("events", bytes([number]) * 100)
        journal.append("metrics", bytes([number]) * 100)
    journal.close()
    plain = [data for data in contents(journal.folder, "events") if len(data) == 100 and len(set(data)) == 1]
    assert plain == [bytes([number]) * 100 for number in range(50)]


def test_journal_evicts_earlier_incarnations_of_its_rank_first(tmp_path: Path) -> None:
    old, other = (
        open_journal(tmp_path, "0-1", segment_bytes=500),
        open_journal(tmp_path, "1-1", segment_bytes=500),
    )
    for journal in (old, other):
        for _ in range(20):
            journal.append("metrics", b"x" * 100)
        journal.close()
    new = open_journal(tmp_path, "0-2", segment_bytes=500, cap_bytes=3900)
    for _ in range(8):
        new.append("metrics", b"y" * 100)
    new.close()
    (left,) = list_segments(old.folder, "metrics")
    assert new.evicted == left.first_seq > 0
    assert (len(contents(other.folder)), len(contents(new.folder))) == (20, 8)


def test_journal_record_over_the_limit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append("events", b"before")
    for unfit in (b"", b"x" * (MAX_RECORD_BYTES + 1)):
        with pytest.raises(JournalError, match="are allowed"):
            journal.append_many("events", [b"fine", unfit])
    assert journal.append("events", b"after") == 1
    journal.close()


def test_journal_closed_refuses_to_write(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.append("events", b"x")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "x" * 129])
def test_journal_names_that_leave_the_spool_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalError, match="cannot name"):
        JournalWriter(tmp_path / "run" / "w", run="run", writer=name)


def test_journal_where_a_file_is_says_so_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(JournalError, match="cannot write the journal in"):
        open_journal(tmp_path)


def test_journal_threads_appending_to_one_stream_share_its_numbers(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=2000)

    def append_many(letter: bytes) -> None:
        for _ in range(200):
            journal.append("events", letter * 10)

    threads = [threading.Thread(target=append_many, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    journal.close()
    assert sorted(contents(journal.folder, "events")) == [
        x * 10 for x in (b"a", b"b", b"c") for _ in range(200)
    ]


def test_journal_interrupted_between_write_and_account_keeps_its_numbers(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append("events", b"one")
    # A Ctrl-C that arrives when the bytes are written and the account is not yet: what it leaves behind.
    stream = journal._streams["events"]
    stream.unsure = True
    assert stream.file is not None
    os.write(
        stream.file.descriptor(), (journal.folder / "events-00000000000000000000.seg").read_bytes()[-11:]
    )
    assert journal.append("events", b"two") == 2
    journal.close()
    assert contents(journal.folder, "events") == [b"one", b"one", b"two"]


FULL_DISK = """
import resource, sys
from pathlib import Path
from probe.delivery.journal.segment_files import list_segments
from probe.errors import JournalError
from probe.delivery.journal.journal import JournalWriter
journal = JournalWriter(Path(sys.argv[1]) / "run" / "0-1", run="run", writer="0-1")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
written, refused = 0, 0
for number in range(20):
    try:
        journal.append_many("metrics", [bytes([number]) * 100] * 3)
        written += 3
    except JournalError:
        refused += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append("metrics", b"room again")
print(written, refused)
"""


def test_journal_that_cannot_grow_cuts_torn_records_off_and_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["6", "18"]
    expected = [bytes([number]) * 100 for number in (0, 0, 0, 1, 1, 1)]
    assert contents(tmp_path / "run" / "0-1") == [*expected, b"room again"]


def test_journal_damaged_newest_segment_is_continued_in_a_new_one(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_many("host", [b"one", b"two"])
    journal.close()
    path = journal.folder / "host-00000000000000000000.seg"
    data = bytearray(path.read_bytes())
    data[-11:] = b"\xff" * 11
    path.write_bytes(data)
    again = open_journal(tmp_path)
    assert again.append("host", b"three") == 2
    again.close()
    assert list(read_stream(journal.folder, "host")) == [(0, b"one"), (2, b"three")]
    assert path.read_bytes() == data


def test_end_of_stream_without_segments_is_none(tmp_path: Path) -> None:
    assert end_of_stream(tmp_path, "events") is None


def test_write_run_json_first_writer_wins(tmp_path: Path) -> None:
    for rank in (3, 1):
        write_run_json(tmp_path, RunStart(run="run", rank=rank, incarnation=1))
    start = read_run_json(tmp_path)
    assert start is not None
    assert (start.rank, sorted(path.name for path in tmp_path.iterdir())) == (3, ["run.json"])
