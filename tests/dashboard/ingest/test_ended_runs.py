"""Ended runs cost a look at their folder, and no more; what comes to them later is read all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_runs import frame, layout, run_start, write_run

from dashboard.ingest import spool as spool_reader
from dashboard.ingest.spool import SpoolIngest
from dashboard.ingest.storage import StorageLine
from dashboard.store.duck import DuckStore
from probe.delivery.journal.journal import JournalWriter
from probe.wire import encode


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    store = DuckStore(tmp_path / "data")
    yield store
    store.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose writers were looked at."""
    found: list[str] = []
    list_writers = spool_reader.list_writers

    def listed(folder: Path) -> list[Path]:
        found.append(folder.name)
        return list_writers(folder)

    monkeypatch.setattr(spool_reader, "list_writers", listed)
    return found


def make_old(folder: Path) -> None:
    """Within a tick of its file system's clock a folder may change again unseen, and is not relied on."""
    os.utime(folder, (1.7e9, 1.7e9))


def passes(reader: SpoolIngest, read: list[str], count: int = 2) -> list[str]:
    """Read some times; return what the last pass has looked at."""
    for _ in range(count):
        read.clear()
        reader.run()
    return sorted(set(read))


def steps(store: DuckStore, run: str) -> int:
    return len(store.scalars(run, 0, ["loss"]))


def test_ended_runs_are_left_alone_and_runs_that_are_written_are_not(
    tmp_path: Path, store: DuckStore, read: list[str]
) -> None:
    spool = tmp_path / "spool"
    for number in range(5):
        make_old(write_run(spool, f"ended-{number}", steps=3))
    journal = JournalWriter(spool / "live" / "0-1", run="live", writer="0-1")
    journal.append("events", encode(run_start("live")))
    journal.append("events", encode(layout()))
    make_old(spool / "live")
    reader = SpoolIngest(store, spool)
    assert passes(reader, read, 1) == [*(f"ended-{number}" for number in range(5)), "live"]
    assert passes(reader, read) == ["live"]
    assert set(reader.run().seen) == {"live", *(f"ended-{number}" for number in range(5))}
    # A record more changes no folder.
    journal.append_many("metrics", [encode(frame(step)) for step in range(4)])
    assert passes(reader, read) == ["live"]
    assert steps(store, "live") == 4
    journal.append_many("metrics", [encode(frame(4))])
    journal.close()
    assert passes(reader, read, 3) == []
    assert steps(store, "live") == 5


def test_another_start_of_an_ended_run_is_read(tmp_path: Path, store: DuckStore, read: list[str]) -> None:
    folder = write_run(tmp_path / "spool", "again", steps=3)
    make_old(folder)
    reader = SpoolIngest(store, folder.parent)
    assert passes(reader, read) == ["again"]
    assert passes(reader, read, 1) == []
    journal = JournalWriter(folder / "1-2", run="again", writer="1-2")
    journal.append("events", encode(run_start("again")))
    journal.append("events", encode(layout()))
    journal.append_many("metrics", [encode(frame(step)) for step in range(7)])
    journal.close()
    assert passes(reader, read, 1) == ["again"]
    assert len(store.scalars("again", 1, ["loss"])) == 7


def test_ended_run_that_is_put_back_or_that_the_store_has_lost_is_read(
    tmp_path: Path, store: DuckStore, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "spool", "moved", steps=3)
    make_old(folder)
    reader = SpoolIngest(store, folder.parent)
    passes(reader, read, 3)
    aside = tmp_path / "aside"
    folder.rename(aside)
    assert passes(reader, read, 1) == []
    aside.rename(folder)
    assert passes(reader, read, 1) == ["moved"]
    passes(reader, read)
    monkeypatch.setattr(store, "generation", lambda: 7)
    assert passes(reader, read, 1) == ["moved"]


def test_storage_is_measured_the_more_rarely_the_longer_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, measured = [0.0], []

    def measure(spool: Path, data: Path, *, store: str) -> str:
        measured.append(now[0])
        now[0] += 0.5
        return f"line {len(measured)}"

    monkeypatch.setattr("dashboard.ingest.storage.storage_line", measure)
    line = StorageLine(lambda: now[0])
    said = []
    for _ in range(60):
        said.append(line.look(tmp_path, tmp_path))
        now[0] += 10
    assert said[0] == "line 1" and said[-1] == f"line {len(measured)}"
    assert len(measured) == 3
