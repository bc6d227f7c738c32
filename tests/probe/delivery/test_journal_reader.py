"""Reading spools: what is damaged becomes a counted hole, what is not a spool one clear sentence."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import Chunk, Skipped, StreamFollower, read_stream
from probe.delivery.journal.run_folders import list_runs, list_writers, read_run_json
from probe.delivery.journal.segment_files import list_segments
from probe.errors import JournalError
from probe.wire import Frame, decode_record
from probe.wire.columns import unpack_column, unpack_missing

FIRST = "metrics-00000000000000000000.seg"


def write_segments(spool: Path, *, records: int = 9, per_segment: int = 3) -> Path:
    """Records `b"record 0"` ... in segments of `per_segment`."""
    folder = spool / "run" / "0-1"
    journal = JournalWriter(folder, run="run", writer="0-1", segment_bytes=1)
    for first in range(0, records, per_segment):
        journal.append_many("metrics", [b"record %d" % seq for seq in range(first, first + per_segment)])
    journal.close()
    return folder


def read(folder: Path, from_seq: int = 0) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers read (each checked against its content) and the holes."""
    skipped: list[Skipped] = []
    numbers = []
    for seq, data in read_stream(folder, "metrics", from_seq=from_seq, on_skip=skipped.append):
        assert data == b"record %d" % seq
        numbers.append(seq)
    return numbers, [(hole.first_seq, hole.end_seq) for hole in skipped]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def test_read_stream_from_any_number_begins_there(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    for start in range(10):
        assert read(folder, start) == (list(range(start, 9)), [])


def test_read_stream_wrong_payload_loses_only_that_record(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    flip(folder / FIRST, (folder / FIRST).stat().st_size - 20)
    assert read(folder) == ([0, 2, 3, 4, 5, 6, 7, 8], [(1, 2)])


def test_read_stream_wrong_length_resumes_at_the_next_segment(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    flip(folder / FIRST, (folder / FIRST).stat().st_size - 32 + 3)
    assert read(folder) == ([0, 3, 4, 5, 6, 7, 8], [(1, 2), (2, 3)])


def test_read_stream_damaged_header_loses_the_segment(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    flip(list_segments(folder, "metrics")[1].path, 20)
    assert read(folder) == ([0, 1, 2, 6, 7, 8], [(3, 4), (4, 6)])


def test_read_stream_zeros_at_the_end_are_no_records(tmp_path: Path) -> None:
    folder = write_segments(tmp_path, records=3)
    path = folder / FIRST
    path.write_bytes(path.read_bytes() + b"\0" * 4096)
    # Told, and by the account no record is missing; without one, there may have been a record.
    assert read(folder) == ([0, 1, 2], [(3, 3)])
    (folder / "account").unlink()
    assert read(folder) == ([0, 1, 2], [(3, 4)])


def test_read_stream_missing_segment_is_a_hole(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    list_segments(folder, "metrics")[1].path.unlink()
    assert read(folder) == ([0, 1, 2, 6, 7, 8], [(3, 6)])


def test_read_stream_missing_beginning_is_a_hole_whose_reason_claims_no_eviction(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    (folder / FIRST).unlink()
    assert read(folder, 1) == ([3, 4, 5, 6, 7, 8], [(1, 3)])
    skipped: list[Skipped] = []
    list(read_stream(folder, "metrics", on_skip=skipped.append))
    assert [one.reason.partition(": ")[2] for one in skipped] == ["not in the folder"]


def test_read_stream_reason_names_file_and_place(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    flip(folder / FIRST, (folder / FIRST).stat().st_size - 1)
    skipped: list[Skipped] = []
    list(read_stream(folder, "metrics", on_skip=skipped.append))
    assert FIRST in skipped[0].reason
    assert "checksum" in skipped[0].reason


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_read_stream_any_damage_is_counted_and_never_invents(data: st.DataObject) -> None:
    """Whatever happens to a closed segment's bytes: every number is read right, or in exactly one hole."""
    with tempfile.TemporaryDirectory() as spool:
        folder = write_segments(Path(spool))
        path = data.draw(st.sampled_from(list_segments(folder, "metrics")[:2])).path
        raw = bytearray(path.read_bytes())
        start = data.draw(st.integers(0, len(raw) - 1))
        noise = data.draw(st.binary(min_size=1, max_size=40))
        raw[start : start + len(noise)] = noise
        path.write_bytes(raw)
        numbers, holes = read(folder)
        covered = numbers + [seq for first, end in holes for seq in range(first, end)]
        assert sorted(covered) == list(range(9))


def test_follower_sees_appends_rotation_and_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "0-1"
    journal = JournalWriter(folder, run="run", writer="0-1", segment_bytes=200)
    follower = StreamFollower(folder, "metrics")
    seen: list[bytes] = []
    for number in range(50):
        assert follower.poll() is None
        journal.append("metrics", b"%d" % number * 20)
        found = follower.poll()
        assert isinstance(found, Chunk)
        seen += found.records
    journal.close()
    assert seen == [b"%d" % number * 20 for number in range(50)]


def test_follower_seek_goes_back_and_forth(tmp_path: Path) -> None:
    follower = StreamFollower(write_segments(tmp_path), "metrics")
    for seq in (7, 0, 4, 8, 3):
        follower.seek(seq)
        found = follower.poll()
        assert isinstance(found, Chunk)
        assert (found.first_seq, found.records[0]) == (seq, b"record %d" % seq)


def test_follower_whose_segment_is_evicted_reports_the_hole(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    follower = StreamFollower(folder, "metrics")
    assert follower.poll(max_bytes=1) == Chunk(0, [b"record 0"])
    (folder / FIRST).unlink()
    found = follower.poll()
    assert isinstance(found, Skipped)
    assert (found.first_seq, found.end_seq) == (1, 3)


def test_follower_chunk_ends_within_its_size_but_has_one_record(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "0-1"
    journal = JournalWriter(folder, run="run", writer="0-1")
    journal.append_many("metrics", [b"x" * 10, b"y" * 10, b"z" * 5000])
    journal.close()
    follower = StreamFollower(folder, "metrics")
    sizes = [
        len(found.records) for found in iter(lambda: follower.poll(100), None) if isinstance(found, Chunk)
    ]
    assert sizes == [2, 1]


def test_follower_waits_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    follower = StreamFollower(tmp_path / "run" / "0-1", "metrics")
    assert follower.poll() is None
    write_segments(tmp_path)
    assert isinstance(follower.poll(), Chunk)


def test_list_runs_empty_folder_is_an_empty_spool(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []


def test_list_runs_and_writers_of_a_spool(tmp_path: Path) -> None:
    folder = write_segments(tmp_path)
    (tmp_path / "stray").mkdir()
    assert list_runs(tmp_path) == [tmp_path / "run"]
    assert list_writers(tmp_path / "run") == [folder]


def test_list_runs_of_what_is_no_spool_says_so(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "photo.jpg", tmp_path / "missing"):
        with pytest.raises(JournalError, match=r"is not a spool|does not exist") as caught:
            list_runs(path)
        assert "\n" not in str(caught.value)


def test_read_run_json_unreadable_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"\xff{")
    assert read_run_json(tmp_path) is None


GOLDEN = Path(__file__).with_name("golden") / "golden" / "0-1700000000000000000"


def test_journal_of_the_first_format_stays_readable() -> None:
    """Written before there were rings; its files are never written again."""
    frames = [decode_record(data) for _, data in read_stream(GOLDEN, "metrics")]
    assert [(frame.step, frame.scalars["loss"]) for frame in frames if isinstance(frame, Frame)] == [
        (0, 1.0),
        (1, 0.5),
        (2, 1.0 / 3.0),
    ]
    assert isinstance(frames[2], Frame)
    assert unpack_column(frames[2].columns[0]).tolist() == [2.5, 2.25]
    assert unpack_missing(frames[2], 2).tolist() == [False, True]
    kinds = [type(decode_record(data)).__name__ for _, data in read_stream(GOLDEN, "events")]
    assert kinds == ["RunStart", "Layout", "RunEnd"]
