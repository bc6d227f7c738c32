"""Events kept in memory: what is read twice is the same as what the database says."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import page_runs
import pytest
from store_engines import OpenStore

from dashboard.store import base, runs
from dashboard.store.duck import DuckStore
from dashboard.store.event_shelf import MAX_RUNS, EventShelf
from dashboard.store.odd_rows import OddRows
from probe.wire import encode


def from_database(store: DuckStore, run: str) -> list[bytes]:
    """Encoded: a NaN is not equal to itself."""
    with store._snapshot() as snapshot:
        return [encode(event) for event in runs.read_events(snapshot, run, odd=OddRows())]


def test_store_events_are_decoded_once_and_stay_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DuckStore(tmp_path)
    page_runs.fill(store, steps=range(3))
    page_runs.add_event(store, page_runs.event(1))
    store.events("demo-run")
    reads: list[str] = []
    whole = runs.read_events
    monkeypatch.setattr(base.runs, "read_events", lambda *a, **k: reads.append(a[1]) or whole(*a, **k))
    for count in range(2, 5):
        page_runs.add_event(store, msgspec.structs.replace(page_runs.event(1), count=count))
        page_runs.add_event(store, page_runs.event(count, subject=f"layer{count}"))
        found = store.events("demo-run")
        assert reads == []
        assert [encode(event) for event in found] == from_database(store, "demo-run")
        reads.clear()
    assert [event.count for event in found] == [4, 1, 1, 1]
    store.close()


def test_store_events_given_away_are_a_copy(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    page_runs.fill(store, steps=range(3))
    page_runs.add_event(store, page_runs.event(1))
    store.events("demo-run").clear()
    assert len(store.events("demo-run")) == 1
    store.close()


def test_shelf_refuses_what_was_read_before_an_event_came() -> None:
    shelf = EventShelf()
    mark = shelf.mark("demo-run")
    shelf.add([page_runs.event(2)])
    shelf.put("demo-run", [], mark=mark)
    assert shelf.events("demo-run") is None
    event = page_runs.event(2)
    shelf.put("demo-run", [event], mark=shelf.mark("demo-run"))
    assert shelf.events("demo-run") == [event]


def test_shelf_keeps_the_runs_that_were_read_last() -> None:
    shelf = EventShelf()
    for number in range(MAX_RUNS):
        shelf.put(str(number), [], mark=0)
    assert shelf.events("0") == []
    shelf.put("another", [], mark=0)
    assert shelf.events("0") == []
    assert shelf.events("1") is None


def test_shelf_remembers_nothing_of_runs_that_are_only_asked_for() -> None:
    shelf = EventShelf()
    for number in range(1000):
        shelf.put(str(number), [], mark=shelf.mark(str(number)))
    assert [shelf.mark(str(number)) for number in range(1000)] == [0] * 1000
    assert len(shelf._marks) == 0
    assert len(shelf._events) == MAX_RUNS


def test_store_events_read_in_a_view_that_lacks_the_newest_are_not_kept(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    for number in range(MAX_RUNS + 1):  # the first one's are not kept any more
        page_runs.fill(store, steps=range(2), run=f"run-{number}")
        page_runs.add_event(store, page_runs.event(1, run=f"run-{number}"))
        store.events(f"run-{number}")
    key, newest = page_runs.key("events", run="run-0"), encode(page_runs.event(2, run="run-0"))
    adding = threading.Thread(target=store.append, args=(key, 3, [newest]))
    with store.view():
        adding.start()
        adding.join()
        assert [event.step for event in store.events("run-0")] == [1]
    assert [event.step for event in store.events("run-0")] == [1, 2]
