"""Journals read straight into a store: complete, once, and not where a helper is at work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from memory_store import MemoryStore

from dashboard.ingest.spool import IngestReport, SpoolIngest, ingest_spool
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.segment_files import list_segments
from probe.errors import JournalError
from probe.wire import Frame, StreamKey, encode

ROOT = Path(__file__).resolve().parents[3]


def key(rank: int = 0) -> StreamKey:
    return StreamKey(run="run", writer=f"{rank}-1", stream="metrics")


def write(spool: Path, steps: range, *, rank: int = 0) -> Path:
    journal = JournalWriter(spool / "run" / f"{rank}-1", run="run", writer=f"{rank}-1", segment_bytes=500)
    for step in steps:
        journal.append("metrics", encode(Frame(step=step, time=0.0)))
    journal.close()
    return journal.folder


def ingest(store: MemoryStore, spool: Path) -> IngestReport:
    return ingest_spool(store, spool)


def test_ingest_reads_every_stream_of_every_writer(tmp_path: Path) -> None:
    store = MemoryStore()
    for rank in (0, 1):
        write(tmp_path, range(100), rank=rank)
    report = ingest(store, tmp_path)
    assert (report.runs, report.records, report.missing, report.problems) == (1, 200, 0, ())
    assert store.durable[key(0)] == store.durable[key(1)] == 100


def test_ingest_again_adds_only_what_is_new(tmp_path: Path) -> None:
    store = MemoryStore()
    write(tmp_path, range(50))
    reader = SpoolIngest(store, tmp_path)
    assert reader.run().records == 50
    write(tmp_path, range(50, 70))
    assert [reader.run().records, reader.run().records, ingest(store, tmp_path).records] == [20, 0, 0]
    assert len(store.records[key()]) == 70


def test_ingest_hole_is_a_gap_and_a_sentence(tmp_path: Path) -> None:
    store = MemoryStore()
    segment = list_segments(write(tmp_path, range(100)), "metrics")[1]
    segment.path.unlink()
    report = ingest(store, tmp_path)
    position = store.position(key())
    assert position.stored + position.gaps == position.next_seq == 100
    assert report.missing == position.gaps > 0
    assert "not in the folder, or cut short" in report.problems[0]


def test_ingest_leaves_a_run_alone_that_a_helper_ships_here(tmp_path: Path) -> None:
    store, elsewhere = MemoryStore(), MemoryStore()
    write(tmp_path, range(10))
    host = tmp_path / "run" / "host-box"
    host.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(host / "helper.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert (ingest(store, tmp_path).shipped_by_helpers, store.durable) == (1, {})
    assert SpoolIngest(elsewhere, tmp_path, is_shipped=lambda run: run != "run").run().records == 10
    holder.communicate(b"", timeout=30)
    assert ingest(store, tmp_path).records == 10


HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_ingest_continues_where_a_helper_has_shipped_meanwhile(tmp_path: Path) -> None:
    store = MemoryStore()
    write(tmp_path, range(50))
    reader = SpoolIngest(store, tmp_path)
    reader.run()
    write(tmp_path, range(50, 90))
    store.append(key(), 50, [encode(Frame(step=step, time=0.0)) for step in range(50, 80)])
    reader.run()
    assert sorted(store.records[key()]) == list(range(90))


def test_ingest_store_that_lost_what_was_not_committed_gets_it_again(tmp_path: Path) -> None:
    store = MemoryStore()
    write(tmp_path, range(50))
    reader = SpoolIngest(store, tmp_path)
    reader.run()
    store.queued[key()] = store.durable[key()] = 30
    write(tmp_path, range(50, 60))
    reader.run()
    assert store.durable[key()] == 60


def test_ingest_store_that_takes_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    write(tmp_path, range(50))
    monkeypatch.setattr(store, "append", lambda key, first_seq, records, **_: 0)
    assert ingest(store, tmp_path).records == 0


def test_ingest_what_is_no_spool_raises_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no run")
    with pytest.raises(JournalError, match="is not a spool"):
        ingest(MemoryStore(), tmp_path)
