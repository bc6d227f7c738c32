"""Two processes have one database: what one deletes or writes, the other does not show as it was before."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import page_runs
import psutil
import pytest
from clickhouse_server import ClickHouseServer, what_is_missing
from store_engines import OpenStore

from dashboard.store.clickhouse import following
from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.protocol import StepNote
from probe.wire import encode

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))

RUN = "demo-run"
SOON_S = 10.0


@pytest.fixture
def stores(clickhouse: ClickHouseServer, tmp_path: Path) -> Any:
    """Two of the same database, which has a run of ten steps."""
    opener = OpenStore(clickhouse)
    first, second = opener(tmp_path), opener(tmp_path)
    page_runs.fill(first, steps=range(10))
    soon(lambda: [run.run for run in second.runs()] == [RUN])
    yield first, second
    opener.close()


def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "not true within 10 s"
        time.sleep(0.02)


def test_run_that_another_process_deletes_goes_and_a_new_one_of_its_name_comes(stores: Any) -> None:
    mine, other = stores
    before = mine.revision(RUN)
    other.remove_run(RUN)
    soon(lambda: mine.runs() == [])
    assert mine.revision(RUN) != before and mine.positions(RUN) == []
    late = mine.append(page_runs.key("metrics"), 10, [encode(page_runs.module_times(10))])
    assert late == 11 and mine.commit() == {} and mine.runs() == []


def test_positions_of_many_streams_take_as_many_queries_as_of_one(
    stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = stores
    database = mine._places.shards[0].database
    rows, here, asked = database.rows, threading.current_thread(), list[str]()

    def counted(query: str, *values: Any) -> list[tuple[Any, ...]]:
        if threading.current_thread() is here:  # another thread looks on
            asked.append(query)
        return rows(query, *values)

    monkeypatch.setattr(database, "rows", counted)
    keys = [page_runs.key("metrics", rank=rank) for rank in range(64)]
    mine.next_seqs(keys[:1])
    of_one = len(asked)
    assert mine.next_seqs(keys) == {key: 10 if key == keys[0] else 0 for key in keys}
    assert 0 < len(asked) - of_one <= of_one


def test_note_of_another_process_is_shown_and_goes(stores: Any) -> None:
    mine, other = stores
    assert mine.notes(RUN) == []
    before = mine.revision(RUN)
    other.write_note(RUN, StepNote(id="n", step=3, text="halved", time=1.7e9))
    soon(lambda: [note.text for note in mine.notes(RUN)] == ["halved"])
    assert mine.revision(RUN) != before
    other.remove_note(RUN, "n")
    soon(lambda: mine.notes(RUN) == [])


def test_deletion_while_news_are_read_does_not_bring_the_run_back(
    stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = stores
    has_read, removing = threading.Event(), threading.Thread(target=mine.remove_run, args=(RUN,))
    read = following._moved_streams

    def slowly(database: Any, since: int) -> Any:
        found = read(database, 0)
        if database is mine._places.shards[0].database and not has_read.is_set():
            removing.start()
            removing.join(0.5)
            has_read.set()
        return found

    monkeypatch.setattr(following, "_moved_streams", slowly)
    assert has_read.wait(SOON_S)
    soon(lambda: not removing.is_alive())
    mine.position(page_runs.key("metrics"))
    assert mine.runs() == []


def test_threads_that_have_ended_keep_no_connection(clickhouse: ClickHouseServer) -> None:
    url = clickhouse.url("threads_that_ended")
    store = ClickStore(url, password=clickhouse.password)

    def connections() -> int:
        gc.collect()
        own = psutil.Process().net_connections("tcp")
        return sum(one.status == "ESTABLISHED" and one.raddr.port == clickhouse.port for one in own)

    try:
        store.runs()
        before = connections()
        readers = [threading.Thread(target=store.marks) for _ in range(6)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        readers.clear()
        del reader
        assert connections() <= before
    finally:
        store.close()
        clickhouse.ask("DROP DATABASE threads_that_ended")
